"""Support gain as the receiver's own successes vanish, for every sharing rule.

Source: docs/theory.md, section 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bandit import World, tradeoff
from bandit.plots import STYLE, log_ticks, looks
from bandit.probes import Probe
from bandit.worlds import rare_success
from paper_figures import RULES, common_legend


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    success : tuple of float
        p, the receiver's success probability.
    asymptotic : float
        Slopes are fitted over p up to here.
    arms : int
        K of the world in which receiver and peer succeed with different arms.
    own, peers : int
        Group sizes G and M.
    rules : {label: Probe}
        The sharing rules.
    """

    success: tuple[float, ...] = tuple(np.geomspace(1e-6, 0.3, 23).tolist())
    asymptotic: float = 1e-3
    arms: int = 1000
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=lambda: RULES)


SWEEP = Sweep()
SHARED, DISJOINT = "shared successes", "disjoint successes"


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact support gain of every rule at every p, in two worlds.

    Returns
    -------
    DataFrame
        As `bandit.tradeoff.sweep` returns it, with columns ``world``, ``arms`` and ``p``;
        ``fitted`` marks the points that `slopes` fits.
    """
    frames = []
    for name, arms in ((SHARED, 8), (DISJOINT, sweep.arms)):
        worlds = {
            p: rare_success(p, arms=arms) if name == SHARED else disjoint_successes(p, arms=arms)
            for p in sweep.success
        }
        rows = tradeoff.sweep(worlds, sweep.rules, parameter="p", own=sweep.own, peers=sweep.peers)
        frames.append(rows.assign(world=name, arms=arms))
    frame = pd.concat(frames, ignore_index=True)
    return frame.assign(fitted=frame["p"] <= sweep.asymptotic)


def disjoint_successes(p: float, /, *, arms: int) -> World:
    """One context where receiver and peer succeed with an arm each, which the other hardly plays.

    The receiver's success arm has probability p and the peer's 1/2; each plays the other's with
    a 1e-6 part of that. The rest is uniform.
    """
    rest = np.ones(arms - 2) / (arms - 2)
    receiver = np.concatenate([[p * (1 - 1e-6), p * 1e-6], (1 - p) * rest])
    peer = np.concatenate([[0.5e-6, 0.5 * (1 - 1e-6)], 0.5 * rest])
    return World.tabular([[receiver], [peer]], [[1.0, 1.0, *np.zeros(arms - 2)]])


def slopes(frame: pd.DataFrame, /) -> pd.DataFrame:
    """Least-squares slopes of log U against log p over the points marked ``fitted``.

    Returns
    -------
    DataFrame
        Columns ``world``, ``label`` and ``slope``; NaN for a rule without positive gains there.
    """
    rows = []
    for (world, label), part in frame[frame["fitted"]].groupby(["world", "label"], sort=False):
        positive = part[part["support_gain"] > 0]
        slope = np.nan
        if len(positive) == len(part) > 1:
            slope = float(np.polyfit(np.log(part["p"]), np.log(part["support_gain"]), 1)[0])
        rows.append({"world": world, "label": label, "slope": slope})
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw the gain against p, one panel a world, with a strip below for gains of 0.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Logarithmic axes; negative gains are drawn at their size, hollow.
    """
    worlds = list(dict.fromkeys(frame["world"]))
    drawn = frame["support_gain"].abs()
    limits = (0.4 * drawn[drawn > 0].min(), 2.5 * drawn.max())
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 3.7), layout="constrained")
        grid = figure.subplots(
            2, len(worlds), sharex=True, sharey="row", height_ratios=(9, 1), squeeze=False
        )
        for (upper, strip), world in zip(grid.T, worlds, strict=True):
            part = frame[frame["world"] == world]
            _panel(upper, strip, part)
            upper.set(ylim=limits)
            upper.set_title(f"{world}, K = {part['arms'].iloc[0]}")
            log_ticks(upper.xaxis)
            log_ticks(upper.yaxis)
            strip.set(yticks=[0], ylim=(-1, 1), xlabel="receiver's success probability $p$")
        grid[0, 0].set_ylabel("size of the support gain  $|U|$")
        common_legend(figure, grid[0, 0], ncols=6)
    return figure


def _panel(upper: Axes, strip: Axes, part: pd.DataFrame, /) -> None:
    """Draw gains that are not 0 above and those that are in the strip."""
    upper.set(xscale="log", yscale="log")
    for label, look in looks(dict.fromkeys(part["label"])).items():
        rule = part[part["label"] == label].sort_values("p")
        gain = rule["support_gain"]
        upper.plot(rule["p"], gain.abs().where(gain != 0), **look.line, label="_")
        for sign, face in ((1, look.colour), (-1, "white")):
            there = rule[np.sign(gain) == sign]
            settings = look.points | {"markerfacecolor": face, "markevery": 2}
            if sign < 0:
                settings |= {"markeredgecolor": look.colour, "markeredgewidth": 1.0}
            upper.plot(there["p"], there["support_gain"].abs(), **settings)
        zero = rule[gain == 0]
        strip.plot(zero["p"], np.zeros(len(zero)), **(look.both | {"markevery": 2}))
        upper.plot([], [], label=label, **look.both)
    strip.spines["left"].set_visible(False)


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute` with the labels of `SWEEP`.
    """
    fitted = slopes(frame).set_index(["world", "label"])["slope"]
    top = frame.loc[frame["fitted"], "p"].max()
    rare = frame["p"].min()
    rows = frame[frame["p"] == rare].set_index(["world", "label"])
    at_rare, flow = rows["support_gain"], rows["open_flow"]
    sgt = frame[(frame["world"] == SHARED) & (frame["label"] == "SGT")]
    most = sgt["support_gain"].max()
    least = frame.sort_values("support_gain").iloc[0]
    lost = (
        f" Some gains are negative (hollow), the lowest {least['support_gain']:.2g} for "
        f"{least['label']} at p = {least['p']:.2g} with {least['world']}."
        if least["support_gain"] < 0
        else ""
    )

    def slope(label: str) -> str:
        return f"{label} {round(fitted[SHARED, label], 2) + 0.0:.2f}"  # never -0.00

    return (
        f"Support gain (exact) against the receiver's success probability. Slopes of log U "
        f"against log p, fitted up to p = {top:.2g} where successes are shared: "
        f"{', '.join(slope(label) for label in ('XGRPO', 'PRP', 'PRP, no ratio', 'SGT'))}; "
        f"GRPO gains {at_rare[SHARED, 'GRPO']:g}. Slope 1 is a gain that vanishes with the "
        f"receiver's own successes, slope 0 one that does not: at p = {rare:.2g} "
        f"XGRPO gains {at_rare[SHARED, 'XGRPO']:.2g}, PRP {at_rare[SHARED, 'PRP']:.2g}, PRP "
        f"without a ratio {at_rare[SHARED, 'PRP, no ratio']:.2g} and SGT "
        f"{at_rare[SHARED, 'SGT']:.2g} (its most: {most:.2g}). "
        f"U weighs success arms by pi/p. Where the peer succeeds with an arm that the receiver "
        f"hardly plays, U is {at_rare[DISJOINT, 'SGT']:.2g} for SGT and "
        f"{at_rare[DISJOINT, 'PRP, no ratio']:.2g} for PRP without a ratio at p = {rare:.2g}, "
        f"though the flow into rare success arms is {flow[DISJOINT, 'SGT']:.2g} and "
        f"{flow[DISJOINT, 'PRP, no ratio']:.2g}.{lost}"
    )
