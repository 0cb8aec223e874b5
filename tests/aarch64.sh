#!/usr/bin/env bash
# Runs the tests of the CPU kernels as compiled for 64-bit ARM, under qemu on a Linux machine of any kind. Arguments are those of cargo in place
# of `test -p layerscope-kernels`: `tests/aarch64.sh clippy --all-targets -p layerscope-kernels`. QEMU_CPU chooses the processor:
# `max` has all instructions, and is taken where nothing is said; `cortex-a72` has no products of bytes.
#
# It needs qemu's user emulation, a C compiler and the C library for that processor (on Debian: qemu-user, gcc-aarch64-linux-gnu,
# libc6-dev-arm64-cross), and Rust's standard library for it: `rustup target add aarch64-unknown-linux-gnu`. Where that is not to be had, RUST_SRC names
# the folder `library` of the sources of the very compiler that is used, and the standard library is built from these.
set -eu
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
export QEMU_CPU=${QEMU_CPU:-max}
options=(--target "$target")
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    if [ ! -f "${RUST_SRC:-}/std/Cargo.toml" ]; then
        echo "Rust's standard library for $target is missing: run \`rustup target add $target\`, or set RUST_SRC" >&2
        exit 2
    fi
    # What is not yet stable of cargo is asked for by name.
    export RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT=$RUST_SRC
    options+=(-Zbuild-std)
fi
[ $# -gt 0 ] || set -- test -p layerscope-kernels
command=$1
shift
exec cargo "$command" "${options[@]}" "$@"
