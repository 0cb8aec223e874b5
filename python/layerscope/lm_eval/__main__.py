"""lm-evaluation-harness's own command line, with the model class `layerscope`:

    PYTHONPATH=python python -m layerscope.lm_eval --model layerscope --model_args policy=speed:24+bos --tasks arc_easy
"""

from lm_eval.__main__ import cli_evaluate

from . import Layerscope  # noqa: F401  registers itself

if __name__ == "__main__":
    cli_evaluate()
