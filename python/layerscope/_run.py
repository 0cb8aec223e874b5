"""A run folder in Python: its manifest, its tables as frames, and what the program says of it."""

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from ._command import LayerscopeError, call
from ._recommendation import Recommendation

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

TABLES = ("prompts", "layers", "heads", "steps", "tokens", "frontier", "knockout", "spans", "policies", "patches")
# What writes the tables that a recording does not.
ADDED_BY = {
    "spans": "layerscope span-ablation {run}",
    "policies": "layerscope record MODEL --prompts FILE --out {run} --policy POLICY",
    "patches": "layerscope patch {run} --clean ID --corrupted ID",
}


class Run:
    """A run folder that `layerscope record` wrote.

    The tables are polars frames. Layers ℓ, heads, steps and positions count from 0; L is the number of layers, p a prompt's tokens.
    An undefined figure is null. `units` and `descriptions` say what each column is.

    A run reads each file once. After further recording, make a new one.

        >>> run = layerscope.Run("run")
        >>> run.model["layers"]
        8
        >>> run.frontier.filter(anchor="bos").group_by("cutoff").agg(pl.mean("kl")).sort("cutoff")
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._frames: dict[str, pl.DataFrame] = {}
        if not self._file("manifest.json").is_file():
            raise FileNotFoundError(
                f"{self.path} holds no run: there is no manifest.json in it; name the folder that `layerscope record` wrote"
            )

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    # The manifest

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """What was run and how: `manifest.json`."""
        manifest = self._json("manifest.json")
        if not isinstance(manifest, dict) or not {"model", "prompts", "status", "weights"} <= manifest.keys():
            raise ValueError(f"{self.path / 'manifest.json'} is no manifest of a run; restore it or record the run again")
        return manifest

    @property
    def model(self) -> dict[str, Any]:
        """The model's name, checksum and dimensions.

            >>> run.model["name"], run.model["layers"], run.model["heads"], run.model["kv_heads"]
            ('layerscope-tiny', 8, 4, 2)
        """
        model: dict[str, Any] = self.manifest["model"]
        return model

    # Tables

    @property
    def prompts(self) -> "pl.DataFrame":
        """A row per prompt: text, tokens, category, `p` (prompt tokens), `steps` (decode steps), continuation, seconds.

            >>> run.prompts.select("prompt_id", "category", "p", "steps", "generated_text")
        """
        return self.table("prompts")

    @property
    def layers(self) -> "pl.DataFrame":
        """A row per prompt and layer, and one for layer −1, the embedding output: means over heads and decode steps.

        Masses are shares of attention (0 to 1), `prompt_entropy` a share of ln(p − 2), curvatures degrees, `lens_kl` nats.

            >>> run.layers.filter(pl.col("layer") >= 0).group_by("layer").agg(pl.mean("prompt_mass")).sort("layer")
        """
        return self.table("layers")

    @property
    def heads(self) -> "pl.DataFrame":
        """A row per prompt, layer and query head: the figures of attention, as mean over decode steps.

            >>> run.heads.group_by("layer", "head").agg(pl.mean("prompt_mass")).sort("prompt_mass").tail(5)
        """
        return self.table("heads")

    @property
    def steps(self) -> "pl.DataFrame":
        """A row per prompt, layer and decode step: the figures of attention as mean over heads, the logit lens, and lists
        of the prompt positions that the step reads most (`read_positions` with `read_mass`; of single heads `head_read_positions`).

            >>> run.steps.group_by("step").agg(pl.mean("prompt_mass")).sort("step")
        """
        return self.table("steps")

    @property
    def tokens(self) -> "pl.DataFrame":
        """A row per prompt, layer and prompt position: the attention that it receives from decode rows, a probability.

        The largest table; `scan` reads parts of it.

            >>> run.tokens.filter(prompt_id="a1", layer=4).top_k(5, by="received_mean")
        """
        return self.table("tokens")

    @property
    def frontier(self) -> "pl.DataFrame":
        """A row per prompt, anchor (`bos`, `none`) and cutoff (1 … L): what it costs to truncate the prompt's prefill there.

        `kl` and `dnll` in nats per token, `top1` a share of steps; `unchanged`, `departs` and `answered` say what becomes of the text.

            >>> run.frontier.filter(anchor="bos").group_by("cutoff").agg(pl.mean("kl", "top1")).sort("cutoff")
        """
        return self.table("frontier")

    @property
    def knockout(self) -> "pl.DataFrame":
        """A row per prompt and layer: what it costs to hide the prompt at that layer alone, nats per token, and at each of its KV heads.

            >>> run.knockout.group_by("layer").agg(pl.mean("kl")).sort("kl").tail(3)
        """
        return self.table("knockout")

    @property
    def spans(self) -> "pl.DataFrame":
        """A row per prompt, span and layer: what it costs to remove a part of the prompt from that layer on. `layerscope span-ablation` adds it.

            >>> run.spans.filter(prompt_id="a1").select("layer", "kl")
        """
        return self.table("spans")

    @property
    def policies(self) -> "pl.DataFrame":
        """A row per prompt, policy, layer and decode step: the figures of attention under policies. `layerscope record --policy` adds it.

            >>> run.policies.group_by("policy", "layer").agg(pl.mean("prompt_mass"))
        """
        return self.table("policies")

    @property
    def patches(self) -> "pl.DataFrame":
        """A row per map of activation patches, layer and position, or layer and head. `layerscope patch` adds a map.

        `effect` is 0 where the patched run is as the corrupted one and 1 where it is as the clean one; null where it was not computed.

            >>> run.patches.filter(map=0).pivot("position", index="layer", values="effect")
        """
        return self.table("patches")

    @overload
    def table(self, name: str, as_: Literal["polars"] = "polars") -> "pl.DataFrame": ...

    @overload
    def table(self, name: str, as_: Literal["pandas"]) -> "pd.DataFrame": ...

    def table(self, name: str, as_: Literal["polars", "pandas"] = "polars") -> "pl.DataFrame | pd.DataFrame":
        """A table by its name, as polars or pandas frame.

        pandas needs pandas and pyarrow (`pip install pandas pyarrow`).

            >>> run.table("frontier", as_="pandas").groupby("cutoff").kl.mean()
        """
        if as_ == "polars":
            return self._frame(name).clone()
        if as_ == "pandas":
            return self._frame(name).to_pandas()
        raise ValueError(f"as_ is polars or pandas, not {as_}")

    def scan(self, name: str) -> "pl.LazyFrame":
        """A table that is read where it is asked for alone, for those that are too large to read whole.

            >>> run.scan("tokens").filter(prompt_id="a1").collect()
        """
        import polars as pl

        return pl.scan_parquet(self._parquet(name))

    def units(self, name: str) -> dict[str, str]:
        """The unit of each column of a table, in the order of its columns.

            >>> run.units("frontier")["kl"]
            'nats'
        """
        return {column: note["unit"] for column, note in self._notes(name).items()}

    def descriptions(self, name: str) -> dict[str, str]:
        """What each column of a table is.

            >>> run.descriptions("frontier")["top1"]
            'Steps with the same argmax'
        """
        return {column: note["description"] for column, note in self._notes(name).items()}

    # Files that further commands add

    @functools.cached_property
    def sets(self) -> dict[str, Any] | None:
        """The sets of KV heads that `layerscope search` found, or None."""
        return self._json("sets.json")

    @functools.cached_property
    def evaluation(self) -> dict[str, Any] | None:
        """Every item's scores under each policy, by `layerscope eval --out RUN`, or None."""
        return self._json("eval.json")

    @functools.cached_property
    def lm_evaluation(self) -> dict[str, Any] | None:
        """The scores of lm-evaluation-harness, by `layerscope lm-eval --out RUN`, or None."""
        return self._json("lm-eval.json")

    @functools.cached_property
    def bench(self) -> dict[str, Any] | None:
        """Time, memory and quality of policies, by `layerscope bench --out RUN`, or None."""
        return self._json("bench.json")

    # What the program says

    def recommendation(
        self,
        *,
        tolerance: float | None = None,
        criterion: Literal["answers", "kl", "text"] | None = None,
        answers: float | None = None,
        anchor: Literal["bos", "none"] | None = None,
    ) -> Recommendation:
        """The recommended cutoff, with reasons: `layerscope recommend`.

        `tolerance` is the mean KL that is acceptable, nats per token (0.1 where none is given); `criterion` what must hold besides, `answers`
        the least share of answers, or of texts, that must be kept (0.95); `anchor` which prompt tokens keep KV at every layer.

            >>> run.recommendation(tolerance=0.02).policy
            'speed:6+bos'
        """
        flags = {"tolerance": tolerance, "criterion": criterion, "answers": answers, "anchor": anchor}
        return Recommendation.of(call(["recommend", self], flags, shown=False))

    def summary(self) -> dict[str, Any]:
        """Means, quantiles and bootstrap intervals over prompts, overall and by category: `layerscope show --summary-json`.

            >>> run.summary()["overall"]["figures"]["prompt_mass"][4]["mean"]    # of layer 4
            0.961
        """
        summary: dict[str, Any] = call(["show", self], {"summary_json": True}, shown=False)
        return summary

    def show(self, prompt_id: str | None = None) -> dict[str, Any]:
        """The manifest and every prompt's figures, or those of one prompt: `layerscope show --json`.

            >>> run.show("a1")["prompts"][0]["prompt_mass"]    # [L]
        """
        figures: dict[str, Any] = call(["show", self], {"prompt_id": prompt_id}, shown=False)
        return figures

    def report(self, path: str | os.PathLike[str], *others: "str | os.PathLike[str]", **flags: object) -> Path:
        """Writes a report, .html, .pdf, .md or .json, and returns its path; `others` are runs to compare with.

            >>> run.report("report.html", tolerance=0.05)
            >>> run.report("comparison.html", layerscope.Run("other-run"))
        """
        call(["report", self, *others], {"out": path, **flags}, shown=True)
        return Path(path)

    # Display

    def __repr__(self) -> str:
        states = self.manifest["prompts"]
        layers = f"{self.model['name']}, {self.model['layers']} layers, {self.manifest['weights']} weights"
        prompts = f"{len(states['done'])} of {len(states['ids'])} prompts recorded"
        return "\n  ".join([f"<Run {self.path.name}", layers, prompts, self._headline]) + ">"

    def _repr_html_(self) -> str | None:
        return self._answer

    @functools.cached_property
    def _headline(self) -> str:
        try:
            return self.recommendation().headline
        except (LayerscopeError, FileNotFoundError) as error:
            return f"no recommendation: {error}"

    @functools.cached_property
    def _answer(self) -> str | None:
        from ._display import answer

        try:
            return answer(self.path)
        except (LayerscopeError, FileNotFoundError):
            return None

    # Files

    def _file(self, name: str) -> Path:
        # Written but not yet moved to its place, where a recording was killed at its end.
        written = self.path / "merged" / name
        return written if written.exists() else self.path / name

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(self._file(name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{self.path / name} is damaged ({error}); restore it or write it again") from None
        return content

    def _parquet(self, name: str) -> Path:
        if name not in TABLES:
            raise ValueError(f"there is no table {name}; the tables of a run are {', '.join(TABLES)}")
        path = self._file(f"{name}.parquet")
        if path.exists():
            return path
        if name in ADDED_BY:
            raise FileNotFoundError(f"{self.path} has no table {name}; `{ADDED_BY[name].format(run=self.path)}` adds it")
        if self.manifest["status"] == "running":
            raise FileNotFoundError(f"{self.path} has no tables yet; the same `layerscope record` resumes the recording and writes them")
        raise FileNotFoundError(f"{self.path} lacks {path.name}; restore it or record the run again")

    def _frame(self, name: str) -> "pl.DataFrame":
        if name not in self._frames:
            with _damage_named(self._parquet(name)):
                self._frames[name] = self.scan(name).collect()
        return self._frames[name]

    def _notes(self, name: str) -> dict[str, dict[str, str]]:
        from ._columns import columns

        path = self._parquet(name)
        with _damage_named(path):
            notes = columns(path)
        if not notes or not all("unit" in note for note in notes.values()):
            raise ValueError(f"{path} has no units: another program wrote it; restore it or record the run again")
        return notes


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Says which table cannot be read."""
    import polars as pl

    try:
        yield
    except pl.exceptions.ComputeError as error:
        raise ValueError(f"{path} is damaged ({error}); restore it or record the run again") from None
