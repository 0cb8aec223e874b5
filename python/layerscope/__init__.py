"""layerscope: how deep does a language model need its prompt to go?

    import layerscope

    run = layerscope.record("model.gguf", prompts="prompts.jsonl", out="run")
    run.recommendation(tolerance=0.05).policy                                  # 'speed:24+bos'
    run.frontier.filter(anchor="bos").group_by("cutoff").mean()                # a polars frame
    layerscope.run("bench", "model.gguf", policies="full,speed:24+bos")        # any command, as parsed JSON

The program does the work; this package starts it and reads what it writes.
"""

from ._binary import LayerscopeNotFound, find_binary
from ._command import LayerscopeError, run
from ._recommendation import Recommendation
from ._record import record
from ._run import Run
from ._store import StoreError, pull, push

__all__ = [
    "LayerscopeError",
    "LayerscopeNotFound",
    "Recommendation",
    "Run",
    "StoreError",
    "__version__",
    "find_binary",
    "pull",
    "push",
    "record",
    "run",
]

__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        from ._version import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
