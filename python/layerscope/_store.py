"""Run folders on object stores."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
# What stands beside the runs of a sweep.
RESULTS = ("sweep.html", "sweep.parquet")


class StoreError(Exception):
    """A folder or address is not what it should be, or the store refused. The message is a sentence."""

    returncode = 2
    """The exit code of `python -m layerscope.store`: 2 for bad input, 1 where the store fails."""


def push(folder: str | os.PathLike[str], url: str, *, told: Callable[[str], object] = lambda name: None) -> list[str]:
    """Copies a finished run, or the runs, table and report of a sweep, to an object store; returns the names of what was written.

    Every run must be finished: a recording that goes on is refused. Data first, the manifest last. `told` is called with each name
    before it is copied.

        >>> layerscope.push("run", "s3://bucket/runs/run")
        ['frontier.parquet', 'heads.parquet', …, 'manifest.json']

    Raises `StoreError`.
    """
    folder = Path(folder)
    runs = [folder] if (folder / MANIFEST).exists() else sorted(path.parent for path in folder.glob(f"runs/*/{MANIFEST}"))
    if not runs:
        raise StoreError(f"{folder} holds no run, nor the runs of a sweep; name the --out folder of layerscope record or sweep")
    for run in runs:
        _check_finished(run)
    obstore, store = _store(url)
    written = []

    def put(path: Path) -> None:
        name = path.relative_to(folder).as_posix()
        told(name)
        obstore.put(store, name, path)
        written.append(name)

    with _sentences(f"cannot write to {url}"):
        for run in runs:
            manifest = run / MANIFEST
            # A store that has no such object says so, or does not.
            try:
                obstore.delete(store, manifest.relative_to(folder).as_posix())
            except FileNotFoundError:
                pass
            for path in _data(run):
                put(path)
            put(manifest)
        if runs != [folder]:
            for path in (folder / name for name in RESULTS):
                if path.exists():
                    put(path)
    return written


def pull(url: str, folder: str | os.PathLike[str], *, told: Callable[[str], object] = lambda name: None) -> list[str]:
    """Copies a run, or the runs, table and report of a sweep, from an object store into a new folder; returns the names of what it
    holds. The folder is there once all is.

        >>> layerscope.pull("s3://bucket/runs/run", "run")
        >>> layerscope.Run("run").recommendation().policy

    Raises `StoreError`.
    """
    folder = Path(folder)
    if folder.exists():
        raise StoreError(f"{folder} is there already; name a new folder")
    obstore, store = _store(url)
    with _sentences(f"cannot read {url}"):
        names = sorted(entry["path"] for batch in obstore.list(store) for entry in batch)
        if not any(Path(name).name == MANIFEST for name in names):
            raise StoreError(f"{url} holds no finished run: there is no {MANIFEST} in it")
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name in names:
                path = unfinished / name
                if not path.resolve().is_relative_to(unfinished.resolve()):
                    raise StoreError(f"{url} holds {name!r}, whose name leads out of the folder")
                told(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as file:
                    for chunk in obstore.get(store, name).stream():
                        file.write(chunk)
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return names


def _data(run: Path) -> Iterator[Path]:
    """The files of a run but its manifest; its lock and what a recording has in hand are left out."""
    return (path for path in sorted(run.iterdir()) if path.is_file() and path.name != MANIFEST and not path.name.startswith("."))


def _check_finished(run: Path) -> None:
    try:
        manifest = json.loads((run / MANIFEST).read_bytes())
        finished = manifest["status"] == "complete"
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{run / MANIFEST} is not a run's manifest ({error}); record the run again") from None
    if not finished:
        raise StoreError(f"{run} is not finished; the command that began it resumes it")


def _store(url: str) -> tuple[Any, Any]:
    try:
        import obstore
        from obstore.store import from_url
    except ImportError:
        raise StoreError("obstore is not installed; pip install 'layerscope[store]'") from None
    if "://" not in url:
        raise StoreError(f"{url} is no address of an object store; give one such as s3://bucket/prefix")
    local = url.startswith("file://")
    # A server that is no cloud, such as one on this machine, may speak HTTP.
    options = {"allow_http": True} if os.environ.get("AWS_ENDPOINT", "").startswith("http://") else {}
    try:
        return obstore, from_url(url, **({"mkdir": True} if local else {"client_options": options}))
    except Exception as error:
        raise StoreError(f"{url} is no address of an object store ({_first_line(error)}); give one such as s3://bucket/prefix") from None


class _sentences:
    """Turns what the store raises into a sentence."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StoreError):
            failure = StoreError(f"{self.what}: {_first_line(error)}")
            failure.returncode = 1
            raise failure from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
