#!/usr/bin/env python3
"""KL against cutoff for both anchors, from a run folder: python docs/plot_frontier.py RUN docs/frontier.png

Needs pandas, pyarrow and matplotlib. Lines are means over prompts, bands the middle half of the prompts.
"""
import json
import sys

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

run, out = sys.argv[1:]
frontier = pd.read_parquet(f"{run}/frontier.parquet")
knockout = pd.read_parquet(f"{run}/knockout.parquet")
manifest = json.load(open(f"{run}/manifest.json"))
layers, prompts = manifest["model"]["layers"], len(manifest["prompts"]["done"])

plt.rcParams.update({"font.size": 9, "font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False})
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
# Okabe and Ito's colours, which colour-blind people tell apart.
for anchor, name, colour in [("none", "nothing of the prompt kept above", "#D55E00"), ("bos", "position 0 kept", "#0072B2")]:
    kl = frontier[frontier.anchor == anchor].groupby("cutoff").kl
    left.plot(kl.mean().index, kl.mean(), color=colour, label=name, lw=1.8)
    left.fill_between(kl.mean().index, kl.quantile(0.25), kl.quantile(0.75), color=colour, alpha=0.18, lw=0)
left.axhline(0.1, color="#555555", lw=0.8, ls="--")
left.text(1, 0.1, "tolerance 0.1", va="bottom", color="#555555")
left.set(yscale="symlog", ylim=(0, None), xlim=(1, layers), xlabel="cutoff (layers that keep the prompt)",
         ylabel="KL(full ‖ cut), nats per token")
left.set_yscale("symlog", linthresh=0.01)
left.legend(frameon=False, loc="lower left")
kl = knockout.groupby("layer").kl
right.bar(kl.mean().index, kl.mean(), color="#009E73", width=0.8)
right.set(xlabel="layer at which alone the prompt is hidden", ylabel="KL(full ‖ knockout), nats per token", xlim=(-0.7, layers - 0.3))
figure.suptitle(f"{manifest['model']['name']}, {prompts} prompts, {manifest['settings']['max_new_tokens']} decode steps each", fontsize=9)
figure.savefig(out, dpi=160)
