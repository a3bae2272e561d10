"""What a baseline from better or worse peers does to XGRPO's variance.

Source: docs/theory.md, section 2 (XGRPO).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bandit import World, exact
from bandit.plots import STYLE, log_ticks, looks
from bandit.policies import squared_scores
from bandit.probes import GRPO, XGRPO, Probe
from bandit.probes.advantage import Scale
from paper_figures import common_legend
from paper_figures.variance_chi2 import tilted_pair


def _rules() -> dict[str, Probe]:
    return {
        "GRPO": GRPO(),
        "XGRPO, pooled": XGRPO(),
        "XGRPO, share 0.25": XGRPO(peer_share=0.25),
        "XGRPO, share 1": XGRPO(peer_share=1.0),
    }


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    success : float
        p, the receiver's success probability.
    peer_success : tuple of float
        q, the peer's.
    own, peers : int
        Group sizes G and M.
    rules : {label: Probe}
        GRPO and settings of XGRPO, each taken with both scales.
    """

    success: float = 0.2
    peer_success: tuple[float, ...] = tuple(np.linspace(0.0, 1.0, 21).tolist())
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=_rules)


SWEEP = Sweep()
SCALES: Mapping[Scale, str] = MappingProxyType({"none": "centred only", "std": "standardised"})


def best_baseline(world: World, /) -> float:
    """The constant b that makes ``tr Cov((r - b) s)`` least: ``E[r |s|^2] / E[|s|^2]``."""
    probs, rewards = world.probs[0, 0], world.rewards[0]
    weight = probs * squared_scores(probs)
    return float((weight * rewards).sum() / weight.sum())


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact variance of GRPO and XGRPO by the peer's success probability.

    Returns
    -------
    DataFrame
        One row for each scale, q and label: ``stability_cost``; ``noise``, the cost divided by
        the squared length of the mean, which no step size changes; ``share`` (NaN: pooled, or
        GRPO) and ``b_opt``, the best constant baseline.
    """
    rows = []
    for scale in SCALES:
        for q in sweep.peer_success:
            world = tilted_pair(sweep.success, q, 0.0)
            for label, rule in sweep.rules.items():
                scaled = replace(rule, scale=scale)
                placed = exact.moments(world, scaled, own=sweep.own, peers=sweep.peers)
                cost = float(placed.covariance_trace[0])
                share = getattr(rule, "peer_share", None)
                rows.append(
                    {
                        "scale": scale,
                        "p": sweep.success,
                        "q": q,
                        "label": label,
                        "share": np.nan if share is None else share,
                        "stability_cost": cost,
                        "noise": cost / np.square(placed.mean).sum(),
                        "b_opt": best_baseline(world),
                        "own": sweep.own,
                        "peers": sweep.peers,
                    }
                )
    return pd.DataFrame(rows)


def parabola(frame: pd.DataFrame, /) -> tuple[float, float, float]:
    """Fit a parabola in q to the centred cost at the largest share of the peers' mean.

    Returns
    -------
    curvature, minimum, misfit : float
        Coefficient of q^2, the q of least cost, and the largest departure from the parabola
        relative to the largest cost.
    """
    part = frame[(frame["scale"] == "none") & (frame["share"] == frame["share"].max())]
    q, cost = part["q"].to_numpy(), part["stability_cost"].to_numpy()
    fit = np.polyfit(q, cost, 2)
    misfit = np.abs(np.polyval(fit, q) - cost).max() / cost.max()
    return float(fit[0]), float(-fit[1] / (2 * fit[0])), float(misfit)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw noise against q, centred advantages to the left, standardised ones to the right.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Left: tr Cov, whose dependence on q is a parabola; right: tr Cov by squared mean.
    """
    columns = ("stability_cost", "noise")
    names = [r"stability cost  tr Cov$(g)$", r"tr Cov$(g)\,/\,|\mathrm{E}\,g|^2$"]
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 3.3), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, (scale, title), column, name in zip(
            panels, SCALES.items(), columns, names, strict=True
        ):
            part = frame[frame["scale"] == scale]
            axes.axvline(part["p"].iloc[0], color="0.75", linewidth=0.8, zorder=0)
            for label, look in looks(dict.fromkeys(part["label"])).items():
                rule = part[part["label"] == label]
                axes.plot(rule["q"], rule[column], label=label, markevery=2, **look.both)
            axes.set(xlabel="peer's success probability $q$", ylabel=name)
            axes.set_title(title)
        panels[1].set_yscale("log")
        log_ticks(panels[1].yaxis)
        panels[0].set_ylim(bottom=0)
        panels[0].annotate(
            "$q = p$",
            (frame["p"].iloc[0], 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            va="top",
        )
        common_legend(figure, panels[0], ncols=4)
    return figure


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute` with the labels of `SWEEP`.
    """
    _, minimum, misfit = parabola(frame)
    first = frame.iloc[0]
    q_high = frame["q"].max()
    table = frame.set_index(["scale", "label", "q"])

    def against(scale: str, column: str, label: str, q: float) -> str:
        values = table[column]
        return f"{values[scale, label, q] / values[scale, 'GRPO', q]:.2g}"

    pooled = frame[(frame["scale"] == "std") & (frame["label"] == "XGRPO, pooled")]
    reference = frame[(frame["scale"] == "std") & (frame["label"] == "GRPO")]
    worse = pooled["q"][pooled["noise"].to_numpy() > reference["noise"].to_numpy()]
    crossing = (
        f"above GRPO's from q = {worse.min():.2g} on" if not worse.empty else "nowhere above GRPO's"
    )
    within = "rounding" if misfit < 1e-9 else f"{misfit:.1g} of its height"
    return (
        f"XGRPO's variance by the peer's success probability q (exact; receiver p = "
        f"{first['p']:g}). Left, centred advantages: with the peers' mean as baseline the cost is "
        f"a parabola in q (up to {within}), least at q = {minimum:.3g}; the best "
        f"constant baseline is {first['b_opt']:.3g}, and a mean of {first['peers']} rollouts adds "
        f"q(1-q)/{first['peers']} to its square. At q = {q_high:g} it costs "
        f"{against('none', 'stability_cost', 'XGRPO, share 1', q_high)} times GRPO, pooled "
        f"{against('none', 'stability_cost', 'XGRPO, pooled', q_high)} times. Right, standardised "
        f"and relative to the squared mean: pooled is {crossing}, and "
        f"{against('std', 'noise', 'XGRPO, pooled', q_high)} times GRPO's at q = {q_high:g}."
    )
