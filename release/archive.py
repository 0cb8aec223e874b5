#!/usr/bin/env python3
"""Packs the program of a wheel, with licences, man pages and completions, into an archive for those without Python.

    python3 release/archive.py WHEEL TARGET [FOLDER]

TARGET is Rust's name of the platform: the archive is named as `cargo binstall` looks for it (crates/cli/Cargo.toml).
"""

import io
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    wheel, target = Path(sys.argv[1]), sys.argv[2]
    folder = Path(sys.argv[3] if len(sys.argv) == 4 else ".")
    files = list(taken(wheel))
    name = f"layerscope-{target}"
    folder.mkdir(parents=True, exist_ok=True)
    if "windows" in target:
        path = folder / f"{name}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for inside, data, _ in files:
                archive.writestr(f"{name}/{inside}", data)
    else:
        path = folder / f"{name}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for inside, data, mode in files:
                entry = tarfile.TarInfo(f"{name}/{inside}")
                entry.size, entry.mode = len(data), mode
                archive.addfile(entry, io.BytesIO(data))
    print(path)


def taken(wheel):
    """Name, bytes and mode of each file that goes into the archive."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if ".data/scripts/" in name:
                yield path.name, archive.read(name), 0o755
            elif ".data/data/share/man/man1/" in name:
                yield f"man/{path.name}", archive.read(name), 0o644
            elif ".data/data/share/" in name:
                yield f"completions/{path.name}", archive.read(name), 0o644
            elif ".dist-info/licenses/" in name:
                yield path.name, archive.read(name), 0o644


if __name__ == "__main__":
    main()
