"""The package's version."""

import importlib.metadata


def version() -> str:
    """That of the installed package; in a source tree, where none is installed, that of the program."""
    for name in ("layerscope", "layerscope-cuda"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    from ._command import run

    printed: str = run("--version")
    return printed.split()[-1]
