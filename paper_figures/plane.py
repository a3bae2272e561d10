"""The stability-support plane where successes are rare: rules, controls, and the frontier.

Source: docs/theory.md, section 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bandit import tradeoff
from bandit.plots import COLOURS, MARKERS, STYLE, log_ticks
from bandit.probes import Probe
from bandit.worlds import rare_success
from paper_figures import RULES, common_legend


def _settings() -> dict[str, Probe]:
    """Settings of all rules, SGT's weight in fine steps as it alone moves far along the plane."""
    return tradeoff.settings(weights=[k / 100 for k in range(1, 51)])


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    success : tuple of float
        p, the receiver's success probability; one panel each.
    own, peers : int
        Group sizes G and M.
    rules : {label: Probe}
        The sharing rules to place; controls are added.
    settings : {label: Probe}
        The settings whose frontier is drawn.
    """

    success: tuple[float, ...] = (0.05, 1e-3, 1e-6)
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=lambda: RULES)
    settings: Mapping[str, Probe] = field(default_factory=_settings)


SWEEP = Sweep()


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact cost and gain of every rule and control at every p, and of the frontier's settings.

    Returns
    -------
    DataFrame
        As `bandit.tradeoff.sweep` returns it, with the swept value in column ``p``; ``role``
        tells a ``rule`` from a ``control`` and a setting on the ``frontier``, by rising cost.
    """
    worlds = {p: rare_success(p) for p in sweep.success}
    own, peers = sweep.own, sweep.peers
    points = tradeoff.sweep(worlds, sweep.rules, parameter="p", own=own, peers=peers, controls=True)
    points["role"] = np.where(points["label"].isin(tradeoff.CONTROLS), "control", "rule")
    lines = []
    for p, world in worlds.items():
        every = tradeoff.frontier(world, sweep.settings, own=own, peers=peers)
        best = every[every["on_frontier"]].sort_values("stability_cost")
        lines.append(best.assign(p=p, role="frontier")[list(points.columns)])
    return pd.concat([points, *lines], ignore_index=True)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw one plane for each p, the gain on a common scale; controls are hollow.

    The stairs are the frontier: the largest gain of any setting within a bound on the cost.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Stability cost to the right (log scale, each panel its own range), support gain upwards.
    """
    values = list(dict.fromkeys(frame["p"]))
    labels = list(dict.fromkeys(frame.loc[frame["role"] != "frontier", "label"]))
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(1.0 + 2.4 * len(values), 3.6), layout="constrained")
        panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
        for axes, p in zip(panels, values, strict=True):
            _panel(axes, frame[frame["p"] == p], labels)
            axes.set_title(f"receiver succeeds with p = {p:g}")
        panels[0].set_ylabel("support gain  $U$")
        panels[len(panels) // 2].set_xlabel(r"stability cost  tr Cov$(g)$")
        common_legend(figure, panels[0], ncols=5)
    return figure


def _panel(axes: Axes, part: pd.DataFrame, labels: list[str], /) -> None:
    """Place one point a label; a control is drawn larger and hollow, as it may lie on a rule."""
    axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    best = part[part["role"] == "frontier"]
    axes.plot(
        best["stability_cost"],
        best["support_gain"],
        drawstyle="steps-post",
        color="0.6",
        linewidth=1.0,
        zorder=1,
        label="frontier of all settings",
    )
    points = part[part["role"] != "frontier"].set_index("label")
    for label, colour, marker in zip(labels, COLOURS, MARKERS, strict=False):
        control = points.loc[label, "role"] == "control"
        row = points.loc[[label]]
        axes.scatter(
            row["stability_cost"],
            row["support_gain"],
            s=95 if control else 34,
            marker=marker,
            facecolor="none" if control else colour,
            edgecolor=colour if control else "white",
            linewidth=1.3 if control else 0.5,
            zorder=2 if control else 3,
            label=label,
            clip_on=False,
        )
    axes.set_xscale("log")
    axes.margins(x=0.12)
    log_ticks(axes.xaxis)
    sns.despine(ax=axes)


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute` with the labels of `SWEEP`.
    """
    values = list(dict.fromkeys(frame["p"]))
    common, rare = max(values), min(values)
    rows = frame[frame["role"] != "frontier"].set_index(["p", "label"])

    def figures(label: str) -> str:
        gain, cost = rows.loc[(rare, label), ["support_gain", "stability_cost"]]
        return f"{gain:.2g} (cost {cost:.2g})"

    def cosine(label: str) -> str:
        return f"{rows.loc[(common, label), 'bias_cosine']:.2f}"

    def unbeaten(p: float) -> str:
        best = frame[(frame["p"] == p) & (frame["role"] == "frontier")]
        here = frame[(frame["p"] == p) & (frame["role"] == "rule")]
        kept = [
            label
            for label, cost, gain in zip(
                here["label"], here["stability_cost"], here["support_gain"], strict=True
            )
            if tradeoff.non_dominated(
                [*best["stability_cost"], cost], [*best["support_gain"], gain]
            )[-1]
        ]
        return f"{' and '.join(kept) or 'none'} at p = {p:g}"

    return (
        f"Stability cost and support gain of one update (exact) at p = "
        f"{', '.join(f'{p:g}' for p in values)}, where the peer succeeds half the time. "
        f"At p = {rare:g}: GRPO gains {figures('GRPO')} on its dead groups, with more own rollouts "
        f"{figures(tradeoff.CONTROLS[0])}, with dynamic sampling {figures(tradeoff.CONTROLS[1])}; "
        f"XGRPO {figures('XGRPO')} and PRP with the exact ratio {figures('PRP')}, gains that "
        f"vanish with p at costs that do not; SGT {figures('SGT')}; PRP without a ratio "
        f"{figures('PRP, no ratio')}, the most; likelihood steps without the gate "
        f"{figures(tradeoff.CONTROLS[2])}. The price in direction shows where the receiver can "
        f"learn by itself: at p = {common:g} the cosine to the true gradient is "
        f"{cosine('PRP, no ratio')} for PRP without a ratio, {cosine(tradeoff.CONTROLS[2])} "
        f"without the gate, {cosine('SGT')} for SGT and {cosine('PRP')} for PRP. The stairs are "
        f"the largest gain that any setting of these rules reaches within a cost; rules shown "
        f"that no setting beats: {'; '.join(unbeaten(p) for p in values)}."
    )
