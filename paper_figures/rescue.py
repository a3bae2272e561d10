"""SGT's rescue, and how it ends by itself as the receiver learns.

Source: docs/theory.md, section 2 (SGT).
"""

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bandit import exact
from bandit.plots import STYLE, log_ticks, looks
from bandit.probes import GRPO, SGT
from bandit.worlds import rare_success
from paper_figures import common_legend
from paper_figures.variance_chi2 import second_moment


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    success : tuple of float
        p, the receiver's success probability.
    own : tuple of int
        G, one line each.
    peers : int
        M.
    weight : float
        lambda.
    """

    success: tuple[float, ...] = tuple(np.geomspace(1e-3, 0.9, 25).tolist())
    own: tuple[int, ...] = (4, 8, 16)
    peers: int = 8
    weight: float = 0.1


SWEEP = Sweep()


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact rescue probability, gain and cost of SGT's extra term.

    Returns
    -------
    DataFrame
        One row for each G and p: ``rescue_probability`` rho and ``flow``, lambda rho;
        ``support_gain`` and ``fisher_gain``; ``extra_moment``, by how much the term raises
        ``E|g|^2``; ``grpo_cost``, tr Cov of GRPO.
    """
    rows = []
    for own in sweep.own:
        for p in sweep.success:
            world = rare_success(p)
            rho = float(exact.rescue_probability(world, own=own, peers=sweep.peers)[0])
            helped = exact.moments(world, SGT(weight=sweep.weight), own=own, peers=sweep.peers)
            alone = exact.moments(world, GRPO(), own=own, peers=sweep.peers)
            rows.append(
                {
                    "own": own,
                    "p": p,
                    "rescue_probability": rho,
                    "flow": sweep.weight * rho,
                    "support_gain": float(helped.support_gain[0]),
                    "fisher_gain": float(helped.fisher_gain[0]),
                    "extra_moment": second_moment(helped) - second_moment(alone),
                    "grpo_cost": float(alone.covariance_trace[0]),
                    "weight": sweep.weight,
                }
            )
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw how often SGT rescues, what it gains and what it costs, against p.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Three panels; in the last, thin lines are GRPO's own cost.
    """
    names = {
        "flow": r"size of the rescue  $\lambda\rho$",
        "support_gain": "support gain  $U$",
        "extra_moment": r"cost: rise of $\mathrm{E}\,|g|^2$",
    }
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 2.9), layout="constrained")
        panels = figure.subplots(1, 3)
        for axes, (column, name) in zip(panels, names.items(), strict=True):
            axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
            for own, look in looks(dict.fromkeys(frame["own"])).items():
                part = frame[frame["own"] == own]
                axes.plot(part["p"], part[column], label=f"G = {own}", markevery=3, **look.both)
            axes.set(xscale="log", xlabel="success probability $p$")
            axes.set_title(name)
            log_ticks(axes.xaxis)
            axes.ticklabel_format(axis="y", style="plain")
        common_legend(figure, panels[0], ncols=3)
    return figure


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.
    """
    # rho is (1 - p)^G times what does not depend on p
    halves = [f"p = {1 - 0.5 ** (1 / own):.3f} (G = {own})" for own in frame["own"].unique()]
    low = frame[frame["p"] == frame["p"].min()]
    turn = frame[frame["support_gain"] < 0]
    negative = (
        f" From p = {turn['p'].min():.2g} on U is negative, {turn['support_gain'].min():.2g} at "
        f"worst: a step in plain logits towards the peer's arms costs the receiver's."
        if not turn.empty
        else ""
    )
    return (
        f"SGT with lambda = {frame['weight'].iloc[0]:g} (exact). At p = {low['p'].iloc[0]:g} it "
        f"rescues with probability {low['rescue_probability'].min():.2g} to "
        f"{low['rescue_probability'].max():.2g}, gains U = {low['support_gain'].min():.3g} to "
        f"{low['support_gain'].max():.3g} and raises E|g|^2 by at most "
        f"{frame['extra_moment'].max():.2g}. All three fall as the receiver learns, the sooner "
        f"the larger its group: the rescue is at half its rate of p = 0 by {', '.join(halves)}."
        f"{negative}"
    )
