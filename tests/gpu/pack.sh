#!/usr/bin/env bash
# Builds what the acceptance on a GPU machine needs and packs it into one file of less than 60 MB.
#
#   tests/gpu/pack.sh [OUT.tar.xz]                # layerscope-gpu.tar.xz unless told otherwise
#
# Needs Rust, a C++ compiler and nvcc from CUDA 13.0 on, in PATH or in CUDA_HOME (.ci/cuda-toolkit fetches one); no GPU.
# LAYERSCOPE_CUDA_ARCHITECTURES says for which GPUs: 90, Hopper, unless told otherwise; 80,86,89,90,100,120 for all.
set -euo pipefail
out=$(realpath -m "${1:-layerscope-gpu.tar.xz}")
cd "$(dirname "$0")/../.."
export LAYERSCOPE_CUDA_ARCHITECTURES=${LAYERSCOPE_CUDA_ARCHITECTURES:-90} CARGO_TERM_COLOR=never
limit=60000000
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pack=$scratch/layerscope-gpu
mkdir -p "$pack/bin" "$pack/crates/kernels" "$pack/crates/engine" "$pack/tests" "$pack/docs/benchmarks"

# Builds, and puts what came of it into the folder bin under a name of ours.
build() { # CARGOS_NAME=OURS … -- ARGUMENTS OF CARGO
    local names=()
    while [ "$1" != -- ]; do names+=("$1"); shift; done
    shift
    cargo "$@" --message-format=json-render-diagnostics > "$scratch/messages.json"
    python3 - "$scratch/messages.json" "$pack/bin" "${names[@]}" <<'PYTHON'
import json, shutil, sys

messages, folder, *names = sys.argv[1:]
wanted = dict(name.split("=") for name in names)
for line in open(messages):
    message = json.loads(line) if line.startswith("{") else {}
    name = (message.get("target") or {}).get("name")
    if message.get("executable") and name in wanted:
        shutil.copy2(message["executable"], f"{folder}/{wanted.pop(name)}")
if wanted:
    sys.exit("cargo made no " + ", ".join(wanted))
PYTHON
}

build layerscope=layerscope -- build --release --features cuda -p layerscope --bin layerscope
build recording_cost=recording_cost -- build --release --features cuda -p layerscope-recording --example recording_cost
# The tests that ask for a device are there where the emulation is; on the GPU they take the real one.
build layerscope_kernels=kernels-tests -- test --release --no-run --features cuda,cuda-emulation -p layerscope-kernels --lib
build families=families policies=policies -- test --release --no-run --features cuda \
    -p layerscope-engine --test families --test policies

strip "$pack"/bin/*
cp -r --parents tests/gpu "$pack"
rm -rf "$pack"/tests/gpu/__pycache__ "$pack"/tests/gpu/*/__pycache__
cp -r --parents fixtures/families fixtures/tiny fixtures/prompts fixtures/tokenizer/llama-bpe.tokenizer.json "$pack"
cp --parents crates/kernels/Cargo.toml crates/engine/Cargo.toml "$pack"
changed=false
[ -z "$(git status --porcelain --untracked-files=no)" ] || changed=true
printf '{"id": "%s", "date": "%s", "changed": %s, "architectures": "%s"}\n' "$(git rev-parse HEAD)" \
    "$(git log -1 --format=%cI)" "$changed" "$LAYERSCOPE_CUDA_ARCHITECTURES" > "$pack/commit.json"

tar -C "$scratch" -c layerscope-gpu | xz -9 -T0 > "$out"
echo "unpacked, bytes:"
(cd "$pack" && du -b -s bin/* fixtures/* tests | sort -rn)
size=$(stat -c %s "$out")
echo "packed: $size bytes in $out"
if [ "$size" -ge "$limit" ]; then
    echo "that is more than $limit: leave out an architecture, or find what grew" >&2
    exit 1
fi
