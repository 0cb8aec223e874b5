"""Records a model on prompts."""

import os

from ._command import call
from ._run import Run


def record(model: str | os.PathLike[str], *, prompts: str | os.PathLike[str], out: str | os.PathLike[str], **flags: object) -> Run:
    """Records a model on a prompt file into a run folder, and returns the run.

    `model` is what `layerscope record` takes: a GGUF file, a folder with safetensors, a name that `layerscope models` lists or a
    Hugging Face id. `prompts` is a prompt file, `out` the run folder. `flags` are further options, as in `layerscope.run`.

    A recording that was interrupted resumes with the same call: every finished prompt is kept.

        >>> run = layerscope.record("model.gguf", prompts="prompts.jsonl", out="run", max_new_tokens=32)
        >>> run.recommendation().l_cut
        24
    """
    call(["record", model], {"prompts": prompts, "out": out, **flags}, json=False, shown=True)
    return Run(out)
