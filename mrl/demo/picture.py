"""The demo's picture: the predicted plane and the measured one next to each other."""

from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bandit.plots import COLOURS, MARKERS, STYLE
from mrl.demo.plan import Mode, Regime


def planes(
    summary: pd.DataFrame,
    prediction: pd.DataFrame,
    modes: Sequence[Mode],
    regimes: Sequence[Regime],
) -> Figure:
    """Draw one row of panels a regime, means over the two receivers.

    Left, predicted: stability cost relative to GRPO (log scale) against support gain. Right,
    measured: own skill lost against GRPO, and the peer's skill gained over GRPO, with intervals
    where there are several seeds.
    """
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(8.4, 3.4 * len(regimes)), layout="constrained")
        panels = figure.subplots(len(regimes), 2, squeeze=False)
        for regime, (left, right) in zip(regimes, panels, strict=True):
            _predicted(left, prediction[prediction["regime"] == regime.key], modes)
            _measured(right, summary[summary["regime"] == regime.key], modes)
            left.set_title(f"predicted; {regime.label}", fontsize="medium")
            right.set_title("measured on language models", fontsize="medium")
        handles, labels = panels[0][1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _predicted(axes: Axes, frame: pd.DataFrame, modes: Sequence[Mode], /) -> None:
    means = frame.groupby("mode")[["relative_cost", "support_gain"]].mean().to_dict("index")
    for i, mode in enumerate(modes):
        row = means[mode.key]
        axes.plot(
            row["relative_cost"], row["support_gain"], MARKERS[i], color=COLOURS[i], markersize=7
        )
    axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    if any(row["relative_cost"] > 0 for row in means.values()):
        axes.set_xscale("log")
    axes.set(xlabel="stability cost relative to GRPO", ylabel="support gain $U$")


def _measured(axes: Axes, frame: pd.DataFrame, modes: Sequence[Mode], /) -> None:
    grouped = frame.groupby(["mode", "skill"])[["difference", "difference_half"]]
    means = grouped.mean().to_dict("index")
    for i, mode in enumerate(modes):
        own, peer = means[mode.key, "own"], means[mode.key, "peer"]
        # A seed alone has no interval over seeds, and GRPO none against itself.
        spread, rise = (
            None if pd.isna(part["difference_half"]) else part["difference_half"]
            for part in (own, peer)
        )
        axes.errorbar(
            -own["difference"],
            peer["difference"],
            xerr=spread,
            yerr=rise,
            fmt=MARKERS[i],
            color=COLOURS[i],
            markersize=7,
            elinewidth=0.8,
            label=mode.label,
        )
    axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.7", linewidth=0.8, zorder=0)
    axes.set(xlabel="own skill lost against GRPO (pass@1)", ylabel="peer's skill gained (pass@1)")
