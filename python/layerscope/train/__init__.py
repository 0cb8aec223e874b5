"""`layerscope adapt` in PyTorch, for models and machines that need GPUs: the same data, masks, objective and adapters."""

try:
    from .data import Batch, Item, read
    from .passes import Passes, loss
    from .policy import Policy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"layerscope.train needs {error.name}: pip install 'layerscope[train]'", name=error.name) from None

__all__ = ["Batch", "Item", "Passes", "Policy", "loss", "read"]
