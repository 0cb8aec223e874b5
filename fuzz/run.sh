#!/usr/bin/env bash
# Fuzzes with coverage and AddressSanitizer: `fuzz/run.sh [-s SECONDS | -n EXECUTIONS] [TARGET…]`, by default each target for
# 60 s. The corpus grows in fuzz/corpus, what is found lies in fuzz/artifacts; LAYERSCOPE_FUZZ_LOGS keeps libFuzzer's logs.
# A C++ compiler is needed, no nightly toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=-max_total_time=60
while getopts s:n: option; do
    case $option in
    s) limit=-max_total_time=$OPTARG ;;
    n) limit=-runs=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- $(cd fuzz/fuzz_targets && basename -s .rs -- *.rs)

# What `cargo fuzz` sets; the options of LLVM and the sanitizer need RUSTC_BOOTSTRAP on a stable toolchain.
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTC_BOOTSTRAP=1 RUSTFLAGS="--cfg fuzzing $coverage -Zsanitizer=address ${RUSTFLAGS:-}" CARGO_TARGET_DIR=fuzz/target \
    cargo build --quiet --package layerscope-fuzz --features fuzzer --profile fuzz --target "$host" \
    --bin seeds $(printf -- '--bin %s ' "$@")
programs=fuzz/target/$host/fuzz

logs=${LAYERSCOPE_FUZZ_LOGS:-fuzz/logs}
scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/layerscope-fuzz.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$logs"
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0 TMPDIR=$scratch
# One thread: the same input reaches the same code.
export RAYON_NUM_THREADS=1
"$programs/seeds" fuzz/corpus
for target in "$@"; do
    mkdir -p "fuzz/artifacts/$target" "fuzz/corpus/$target"
    [ ! -d "fuzz/findings/$target" ] || cp "fuzz/findings/$target"/* "fuzz/corpus/$target/"
    log=$logs/fuzz-$target.log
    # Names are short; files are large.
    case $target in
    policies | model_reference) longest=512 ;;
    prompts | needle | config_json | chat_template) longest=4096 ;;
    *) longest=262144 ;;
    esac
    if ! "$programs/$target" "$limit" -timeout=20 -rss_limit_mb=2560 -malloc_limit_mb=1024 -max_len=$longest \
        -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$target/" "fuzz/corpus/$target" >>"$log" 2>&1; then
        found=$(grep -o "fuzz/artifacts/$target/[a-z]*-[0-9a-f]*" "$log" | tail -1 || true)
        echo "the fuzz target $target fails on ${found:-an input that was not kept}: see $log and run $programs/$target ${found:-}" >&2
        exit 1
    fi
    echo "$target: $(tail -20 "$log" | sed -n 's/^stat::number_of_executed_units: *//p') executions," \
        "$(tail -20 "$log" | sed -n 's/^stat::average_exec_per_sec: *//p') a second"
    rm -rf "${scratch:?}"/*
done
