"""Numbers of the shapes that are measured, and the bytes that they make a GPU read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Architecture numbers of a Llama, as its `config.json` has them."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    tied_embeddings: bool
    rope_base: float

    def weights_read(self):
        """Weights that a decode step reads: all but the embedding's, of which it reads one row."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        layer = attention + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocab * self.hidden

    def kv_bytes(self, element_bytes=2):
        """Bytes of one token's keys and values at one layer."""
        return 2 * self.kv_heads * self.head_dim * element_bytes


SHAPES = {
    shape.name: shape
    for shape in [
        Shape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128_256, False, 500_000.0),
        Shape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49_152, True, 100_000.0),
    ]
}


def step_bytes(shape, length, new_tokens, element_bytes=2):
    """Bytes that a decode step of the full model reads in the middle of its text: weights, and keys and values of prompt
    and text so far."""
    tokens = length + new_tokens / 2
    return element_bytes * shape.weights_read() + tokens * shape.layers * shape.kv_bytes(element_bytes)
