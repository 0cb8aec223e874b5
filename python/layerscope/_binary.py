"""Where the `layerscope` program is."""

import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path


class LayerscopeNotFound(FileNotFoundError):
    """There is no `layerscope` program."""


def find_binary() -> str:
    """The path of the `layerscope` program.

    Looked for in this order: what the environment variable `LAYERSCOPE` names, a program that was installed beside this
    package, `PATH`.

    Raises `LayerscopeNotFound` where it is in none of these.

        >>> layerscope.find_binary()
        '/home/me/venv/bin/layerscope'
    """
    named = os.environ.get("LAYERSCOPE")
    if named:
        found = shutil.which(named)
        if found is None:
            raise LayerscopeNotFound(f"the environment variable LAYERSCOPE names {named}, which is no program")
        return os.path.abspath(found)
    name = "layerscope" + (sysconfig.get_config_var("EXE") or "")
    for folder in _folders():
        program = folder / name
        if program.is_file() and os.access(program, os.X_OK):
            return str(program)
    found = shutil.which("layerscope")
    if found is None:
        raise LayerscopeNotFound(
            "the layerscope program is neither installed beside this package nor on PATH; "
            "put it on PATH, or name it in the environment variable LAYERSCOPE"
        )
    return os.path.abspath(found)


def _folders() -> Iterator[Path]:
    """Where installers put programs: first beside this package, so that program and package are of one version."""
    scripts = Path(sysconfig.get_path("scripts"))
    # Not resolved: some installers link the files of a package to a cache.
    site = Path(os.path.abspath(__file__)).parent.parent
    # TARGET/layerscope with TARGET/bin: `pip install --target`.
    yield site / "bin"
    # PREFIX/lib/python3.X/site-packages or PREFIX\Lib\site-packages: environments, `pip install --prefix`, `--user`.
    if site.name in ("site-packages", "dist-packages"):
        yield site.parents[1 if os.name == "nt" else 2] / scripts.name
        # ROOT\Python3X\site-packages with ROOT\Python3X\Scripts: `--user` on Windows.
        yield site.parent / scripts.name
    # __pypackages__/3.X/lib with __pypackages__/3.X/bin: PDM without an environment.
    if site.name == "lib":
        yield site.parent / scripts.name
    yield scripts
    yield Path(sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user")))
