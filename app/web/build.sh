#!/usr/bin/env bash
# Builds the viewer as a page of a browser into a folder, compressed as it is served. What is built with that folder serves the page:
#
#     app/web/build.sh target/web && LAYERSCOPE_WEB=target/web cargo build --release --features full
#
# It needs Rust's standard library for browsers (`rustup target add wasm32-unknown-unknown`) and wasm-bindgen of the version in Cargo.lock
# (`cargo install wasm-bindgen-cli --version …`). (wasm-opt would make the page 2 % smaller.)
set -eu
if [ $# -ne 1 ]; then
    echo "give the folder to write to: app/web/build.sh target/web" >&2
    exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/version = "\(.*\)"/\1/p}' Cargo.lock)
if [ "$(wasm-bindgen --version 2>/dev/null)" != "wasm-bindgen $version" ]; then
    echo "wasm-bindgen $version is missing: cargo install wasm-bindgen-cli --version $version" >&2
    exit 2
fi
target=${CARGO_TARGET_DIR:-target}
"${CARGO:-cargo}" build --locked --profile web --target wasm32-unknown-unknown -p layerscope-app --features web --bin layerscope-web
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wasm-bindgen --target web --no-typescript --remove-name-section --out-dir "$work" "$target/wasm32-unknown-unknown/web/layerscope-web.wasm"
cp app/web/index.html app/web/start.js "$work"
rm -f "$folder"/*.gz
for file in index.html start.js layerscope-web.js layerscope-web_bg.wasm; do
    gzip -9 -n -c "$work/$file" > "$folder/$file.gz"
done
ls -l "$folder"
