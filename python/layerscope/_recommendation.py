"""A recommended cutoff."""

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Recommendation:
    """What `layerscope recommend` says. Figures that are undefined or unknown are None.

        >>> answer = run.recommendation(tolerance=0.05)
        >>> answer.l_cut, answer.layers, answer.policy
        (6, 8, 'speed:6+bos')
        >>> print(answer)
    """

    l_cut: int
    """The cutoff: prompt tokens run through layers 0 … l_cut−1. `layers` where full depth is to be kept."""
    layers: int
    """Layers of the model, L."""
    anchor: str
    """Prompt tokens that keep KV at every layer: `bos`, which is position 0, or `none`."""
    exact_l_cut: int
    """The smallest cutoff that passes, even where it saves too little to be worth it."""
    tolerance: float
    """Mean KL divergence that was accepted, nats per token."""
    kl: float | None
    """Mean KL divergence from the full model at the cutoff, nats per token."""
    kl_upper95: float | None
    """One-sided 95 % bootstrap bound of `kl`, nats per token."""
    top1: float | None
    """Share of steps whose most likely token stays the same, 0 to 1."""
    answers: int
    """Prompts whose expected answer the full model gives."""
    answers_kept: float | None
    """Share of these that the cutoff keeps, 0 to 1."""
    kv_saved: float
    """Share of the KV bytes that are never allocated, at the run's prompt lengths, 0 to 1."""
    prompts: int
    """Prompts that it is based on."""
    reasons: list[str]
    """The reasons, a sentence each."""
    caveats: list[str]
    """What to beware of, a clause each."""
    figures: dict[str, Any] = field(repr=False)
    """All of `layerscope recommend --json`, by category and by cutoff, too."""

    @classmethod
    def of(cls, figures: dict[str, Any]) -> "Recommendation":
        named = {name.name: figures[name.name] for name in fields(cls) if name.name != "figures"}
        return cls(**named, figures=figures)

    @property
    def policy(self) -> str:
        """The policy to generate with, e.g. `speed:6+bos`; `full` where full depth is to be kept."""
        if self.l_cut == self.layers:
            return "full"
        return f"speed:{self.l_cut}" + ("+bos" if self.anchor == "bos" else "")

    @property
    def headline(self) -> str:
        if self.l_cut == self.layers:
            return f"Keep full depth, all {self.layers} layers"
        return f"Cut at {self.l_cut} of {self.layers} layers (policy {self.policy}), {100 * self.kv_saved:.1f} % less KV"

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  - {reason}" for reason in self.reasons)])
