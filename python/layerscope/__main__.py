"""`python -m layerscope ARGUMENTS…` is `layerscope ARGUMENTS…`."""

import os
import subprocess
import sys

from ._binary import LayerscopeNotFound, find_binary


def main() -> int:
    try:
        command = [find_binary(), *sys.argv[1:]]
    except LayerscopeNotFound as error:
        print(f"layerscope: {error}", file=sys.stderr)
        return 1
    if sys.platform != "win32":
        os.execv(command[0], command)
    # On Windows, exec would return to the shell at once. Ctrl-C reaches the program by itself.
    process = subprocess.Popen(command)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    sys.exit(main())
