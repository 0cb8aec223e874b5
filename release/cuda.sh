#!/usr/bin/env bash
# Builds layerscope-cuda: the same wheel with the kernels for NVIDIA GPUs in its program, and cuBLAS of NVIDIA's own wheel as dependency.
#
#   CUDA_HOME=$(.ci/cuda-toolkit) release/cuda.sh [FOLDER]        # the wheel is put into FOLDER, dist unless told otherwise
#
# Needs maturin, Rust and nvcc of CUDA 13.0 or later; no GPU. LAYERSCOPE_CUDA_ARCHITECTURES says for which GPUs: all, unless told otherwise.
set -euo pipefail
out=$(realpath -m "${1:-dist}")
cd "$(dirname "$0")/.."
# maturin takes name and dependencies from pyproject.toml alone.
cp pyproject.toml pyproject.toml.saved
trap 'mv pyproject.toml.saved pyproject.toml' EXIT
sed -i -e 's/^name = "layerscope"$/name = "layerscope-cuda"/' -e 's/^dependencies = \[/&"nvidia-cublas>=13,<14", /' pyproject.toml
grep -q '^name = "layerscope-cuda"$' pyproject.toml
grep -q '^dependencies = \["nvidia-cublas' pyproject.toml
maturin build --release --locked --features full,cuda --out "$out"
