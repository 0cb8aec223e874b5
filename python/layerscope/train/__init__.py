"""`layerscope adapt` in PyTorch, for models and machines that need GPUs: the same data, masks, objective and adapters."""

from .data import Batch, Item, read
from .passes import Passes, loss
from .policy import Policy

__all__ = ["Batch", "Item", "Passes", "Policy", "loss", "read"]
