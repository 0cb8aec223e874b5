#!/usr/bin/env python3
"""Executes the notebooks from top to bottom: python3 notebooks/execute.py [--write] [NOTEBOOK …]

Each notebook gets a new kernel of this Python, in the folder notebooks, as Jupyter starts it. Any error fails, with
the notebook, the cell and the traceback. Without --write the outputs are thrown away, after checking that each cell
gives outputs of the same kinds as the committed file has; with it they are stored in the file.

The package `layerscope` is that of this repository.

Environment: LAYERSCOPE, the binary (else `layerscope` on PATH); LAYERSCOPE_RUN and LAYERSCOPE_OTHER_RUN, run folders
of your own. With these the kinds of output are not compared, because another run may have other figures to show.
"""
import argparse
import base64
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
OWN_RUNS = ("LAYERSCOPE_RUN", "LAYERSCOPE_OTHER_RUN")
SECONDS_PER_CELL = 600
# What a notebook says of its kernel: nothing about the machine that executed it.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Failed(Exception):
    """A notebook that did not execute as it should."""


def prepare_environment(scratch):
    """Paths that hold from any folder, this repository's package, and no settings of the user's Jupyter and IPython."""
    paths = [str(FOLDER.parent / "python"), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if os.sep in os.environ.get("LAYERSCOPE", ""):
        os.environ["LAYERSCOPE"] = str(Path(os.environ["LAYERSCOPE"]).resolve())
    for name in OWN_RUNS:
        if os.environ.get(name):
            os.environ[name] = str(Path(os.environ[name]).resolve())
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        folder = Path(scratch, name.lower())
        folder.mkdir()
        os.environ[name] = str(folder)
    os.environ.pop("MPLBACKEND", None)
    # Builds the font cache where it is missing, which would otherwise print a line into the first notebook.
    import matplotlib.font_manager  # noqa: F401


def execute(notebook):
    """Runs all cells of a notebook, in place."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=SECONDS_PER_CELL,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
        extra_arguments=["--log-level=ERROR"],
    )
    try:
        client.execute()
    except CellExecutionError as error:
        raise Failed(f"{failed_cell(notebook)} fails:\n{without_colours(str(error))}") from None
    except (CellTimeoutError, DeadKernelError) as error:
        raise Failed(f"{failed_cell(notebook)} does not end: {without_colours(str(error))}") from None
    except RuntimeError as error:
        raise Failed(f"the kernel does not start: {error}") from None


def failed_cell(notebook):
    """The last cell that was begun."""
    code = [(number, cell) for number, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]
    begun = [(number, cell) for number, cell in code if cell.execution_count or cell.outputs]
    number, cell = (begun or code)[-1 if begun else 0]
    return f"cell {number} ({cell.get('id', 'without id')})"


def without_colours(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def kinds(cell):
    """What a cell put out, without the contents; consecutive text on one stream counts once."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            kind = ("stream", output.name)
        else:
            kind = (output.output_type, *sorted(output.get("data", {})))
        if not (found and kind[0] == "stream" and found[-1] == kind):
            found.append(kind)
    return found


def compare(committed, executed):
    for number, (before, after) in enumerate(zip(committed.cells, executed.cells), 1):
        if before.cell_type == "code" and kinds(before) != kinds(after):
            raise Failed(
                f"cell {number} ({after.get('id', 'without id')}) gave {kinds(after)}, the file has {kinds(before)}; "
                "if that is meant, store it with --write"
            )


def smaller(png):
    """A PNG with a palette of 256 colours, in base64 as it came: a third of the bytes, and no difference to be seen."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
    page = Image.new("RGBA", picture.size, "white")
    page.alpha_composite(picture)
    packed = io.BytesIO()
    page.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def tidy(notebook):
    """Leaves nothing in a notebook that depends on the machine or the hour, and keeps it small."""
    notebook.metadata = METADATA
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    shown = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    shown = re.sub(r'"image/png": "[^"]*"', "", shown)
    for place in {tempfile.gettempdir(), str(Path.home()), str(FOLDER.parent)}:
        if re.search(re.escape(place) + r"\b", shown):
            raise Failed(f"an output names the folder {place}")


def run(path, write):
    import nbformat

    committed = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    execute(notebook)
    if write:
        tidy(notebook)
        nbformat.write(notebook, path)
    elif not any(os.environ.get(name) for name in OWN_RUNS):
        compare(committed, notebook)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="all of them unless named")
    arguments = parser.parse_args()
    if arguments.write and any(os.environ.get(name) for name in OWN_RUNS):
        parser.error(f"--write stores the embedded model's outputs; unset {' and '.join(OWN_RUNS)}")
    paths = [path.resolve() for path in arguments.notebooks] or sorted(FOLDER.glob("*.ipynb"))
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        prepare_environment(scratch)
        for path in paths:
            try:
                run(path, arguments.write)
                print(f"{path.name}: {'written' if arguments.write else 'executed'}", flush=True)
            except (Failed, OSError, ValueError) as problem:
                failures += 1
                print(f"{path.name}: {problem}", file=sys.stderr, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
