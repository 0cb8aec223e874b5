#!/usr/bin/env bash
# Puts man pages and completions where a wheel and an archive carry them from:
#
#   release/data.sh LAYERSCOPE [FOLDER]        # FOLDER: layerscope.data, beside pyproject.toml, where maturin looks for it
#
# Any build of the program writes the same. A wheel that is built without them has the program and the package all the same.
set -euo pipefail
program=$(realpath "$1")
folder=${2:-$(dirname "$0")/../layerscope.data}
rm -rf "$folder"
share=$folder/data/share
completions() { # SHELL FILE
    mkdir -p "$(dirname "$share/$2")"
    "$program" completions "$1" > "$share/$2"
}
completions bash bash-completion/completions/layerscope
completions fish fish/vendor_completions.d/layerscope.fish
completions zsh zsh/site-functions/_layerscope
"$program" man "$share/man/man1"
