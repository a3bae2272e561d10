"""The price of ratio weights: second moments that grow as 1 + chi2.

Source: docs/theory.md, sections 2 (PRP) and 3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bandit import Residual, World, exact, tradeoff
from bandit.design import Design
from bandit.moments import Moments
from bandit.plots import STYLE, log_ticks, looks
from bandit.probes import GRPO, PRP, Probe

# The weights keep their mean and double their mean square: what is added to the second moment is
# the peers' share of it.
DOUBLED = Residual(mu=-math.log(2) / 2, sigma=math.sqrt(math.log(2)))


def _rules() -> dict[str, Probe]:
    return {
        "PRP": PRP(),
        "PRP, cap 4": PRP(cap=4.0),
        "PRP, no ratio": PRP(ratio="none"),
        "GRPO": GRPO(),
    }


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    success : float
        p, the receiver's success probability.
    peer_success : tuple of float
        q, the peer's; one family of peers each. The first is drawn for all rules.
    tilts : tuple of float
        How far the peer's probabilities within an outcome are tilted, in nats.
    own, peers : int
        Group sizes G and M.
    rules : {label: Probe}
        Rules whose stability cost is compared; PRP is among them.
    """

    success: float = 0.25
    peer_success: tuple[float, ...] = (0.25, 0.75, 0.05)
    tilts: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=_rules)


SWEEP = Sweep()


def tilted_pair(
    success: float, peer_success: float, tilt: float, /, *, steps: int = 4, repeats: int = 3
) -> World:
    """One context where the peer's probabilities are tilted alike within either outcome.

    There are `steps` success arms and `repeats` times as many failures. The receiver is uniform
    within an outcome; the peer's probabilities fall by a factor ``exp(tilt)`` from the first of
    `steps` arms to the last. So ratios are exact and bounded, and with equal success
    probabilities they tell nothing about the outcome.
    """

    def policy(p: float, slope: float) -> np.ndarray:
        share = np.exp(-slope * np.linspace(0.0, 1.0, steps))
        share /= share.sum()
        return np.concatenate([p * share, np.tile((1 - p) / repeats * share, repeats)])

    rewards = np.repeat([1.0, 0.0], [steps, repeats * steps])
    return World.tabular([[policy(success, 0.0)], [policy(peer_success, tilt)]], [rewards])


def second_moment(moments: Moments, /) -> float:
    """``E|g|^2`` of a world with one context."""
    return float(moments.covariance_trace[0] + np.square(moments.mean[0]).sum())


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact second moments for peers further and further from the receiver.

    Returns
    -------
    DataFrame
        One row for each q, tilt and label: ``chi2``; ``stability_cost``; ``second_moment``
        ``E|g|^2``; and for PRP ``peer_moment``, the peers' part of it relative to the part that
        M more copies of the receiver would have, and ``ess``, peers' effective sample size.
    """
    own, peers = sweep.own, sweep.peers

    def peer_part(world: World) -> float:
        plain = exact.moments(world, PRP(), own=own, peers=peers)
        doubled = exact.moments(world, PRP(), own=own, peers=peers, residual=DOUBLED)
        return second_moment(doubled) - second_moment(plain)

    twins = peer_part(tilted_pair(sweep.success, sweep.success, 0.0))
    rows = []
    for q in sweep.peer_success:
        for tilt in sweep.tilts:
            world = tilted_pair(sweep.success, q, tilt)
            design = Design.of(world, receiver=0, own=own, peers=peers)
            chi2 = float(tradeoff.chi_squared(world, design)[0])
            for label, rule in sweep.rules.items():
                placed = exact.moments(world, rule, own=own, peers=peers)
                weighted = rule == PRP()
                rows.append(
                    {
                        "p": sweep.success,
                        "q": q,
                        "tilt": tilt,
                        "label": label,
                        "chi2": chi2,
                        "stability_cost": float(placed.covariance_trace[0]),
                        "second_moment": second_moment(placed),
                        "peer_moment": peer_part(world) / twins if weighted else np.nan,
                        "ess": peers / (1 + chi2) if weighted else np.nan,
                        "peers": peers,
                    }
                )
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw PRP's growth with chi2 by kind of peer, and the cost of all rules in the first.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Left: peers' part of the second moment and the line 1 + chi2; right: tr Cov.
    """
    weighted = frame[frame["peer_moment"].notna()]
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        # log1p keeps the twin, whose chi2 is 0, on the axis
        line = np.sort(1 + weighted["chi2"].to_numpy())
        left.plot(line, line, color="0.6", linewidth=3.5, zorder=0, label=r"$1+\chi^2$")
        for q, look in looks(dict.fromkeys(weighted["q"])).items():
            part = weighted[weighted["q"] == q].sort_values("chi2")
            left.plot(1 + part["chi2"], part["peer_moment"], label=f"q = {q:g}", **look.both)
        left.set_ylabel("second moment of peers' terms,\nrelative to a twin's")
        left.set_title(f"PRP, p = {frame['p'].iloc[0]:g}")
        left.legend(frameon=False)
        same = frame[frame["q"] == frame["q"].iloc[0]]
        for label, look in looks(dict.fromkeys(same["label"])).items():
            part = same[same["label"] == label].sort_values("chi2")
            right.plot(1 + part["chi2"], part["stability_cost"], label=label, **look.both)
        right.set_ylabel(r"stability cost  tr Cov$(g)$")
        right.set_title(f"all rules, p = {frame['p'].iloc[0]:g}, q = {frame['q'].iloc[0]:g}")
        right.legend(frameon=False)
        for axes in (left, right):
            axes.set(xscale="log", yscale="log", xlabel=r"$1+\chi^2$, receiver from peer")
            log_ticks(axes.xaxis)
            log_ticks(axes.yaxis)
    return figure


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute` with the labels of `SWEEP`.
    """
    weighted = frame[frame["peer_moment"].notna()]
    first = frame["q"].iloc[0]
    same, other = weighted[weighted["q"] == first], weighted[weighted["q"] != first]
    off = (same["peer_moment"] / (1 + same["chi2"]) - 1).abs().max()
    ratio = other["peer_moment"] / (1 + other["chi2"])
    far = frame[(frame["q"] == first) & (frame["tilt"] == frame["tilt"].max())]
    far = far.set_index("label")
    near = frame[(frame["q"] == first) & (frame["tilt"] == frame["tilt"].min())]
    near = near.set_index("label")

    def cost(label: str) -> str:
        return f"{far.loc[label, 'stability_cost'] / near.loc[label, 'stability_cost']:.2g}"

    within = "rounding" if off < 1e-9 else f"{off:.1g} of it"
    return (
        f"Ratio weights (exact). Left: the second moment of the peers' terms in PRP, relative to "
        f"what as many more rollouts of the receiver would have. Where the peer succeeds as often "
        f"as the receiver (p = q = {first:g}) it is 1 + chi2, up to {within}; where q "
        f"is {' or '.join(f'{q:g}' for q in dict.fromkeys(other['q']))}, between {ratio.min():.2g} "
        f"and {ratio.max():.2g} times that, as ratio and advantage are then tied to the outcome. "
        f"Right: from a twin to chi2 = {far['chi2'].max():.3g} (effective sample size "
        f"{far.loc['PRP', 'ess']:.2g} of {far['peers'].iloc[0]}) the stability cost is multiplied "
        f"by {cost('PRP')} for PRP, {cost('PRP, cap 4')} with the ratio capped at 4 and "
        f"{cost('PRP, no ratio')} without a ratio, whose price is bias; GRPO's stays."
    )
