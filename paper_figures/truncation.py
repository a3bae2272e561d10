"""Bias against variance of a capped ratio.

Source: docs/theory.md, sections 2 (PRP) and 5 (fact 7).
"""

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bandit import exact, tradeoff
from bandit.design import Design
from bandit.plots import STYLE, log_ticks, looks
from bandit.probes import PRP
from paper_figures.variance_chi2 import tilted_pair


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    caps : tuple of float
        Upper bounds on the ratio, in increasing order; the last one should bind nowhere.
    batches : tuple of int
        Independent groups that an update averages over.
    success, peer_success, tilt : float
        The world, see `paper_figures.variance_chi2.tilted_pair`.
    own, peers : int
        Group sizes G and M.
    """

    caps: tuple[float, ...] = tuple(np.geomspace(0.1, 300.0, 36).tolist())
    batches: tuple[int, ...] = (1, 16, 256, 4096)
    success: float = 0.25
    peer_success: float = 0.75
    tilt: float = 5.0
    own: int = 8
    peers: int = 8


SWEEP = Sweep()


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact bias and variance of PRP at every cap, by size of the batch.

    Returns
    -------
    DataFrame
        One row for each cap and batch: ``bias``, squared distance of the mean from that without
        a cap; ``variance``, tr Cov of the batch's mean; ``error``, their sum; all divided by the
        squared length of the mean without a cap. ``bias_cosine``, ``chi2``, and ``best``, True at
        the cap with the least error of the batch.
    """
    world = tilted_pair(sweep.success, sweep.peer_success, sweep.tilt)
    aim = exact.moments(world, PRP(), own=sweep.own, peers=sweep.peers).mean[0]
    scale = np.square(aim).sum()
    chi2 = float(
        tradeoff.chi_squared(world, Design.of(world, receiver=0, own=sweep.own, peers=sweep.peers))[
            0
        ]
    )
    rows = []
    for cap in sweep.caps:
        capped = exact.moments(world, PRP(cap=cap), own=sweep.own, peers=sweep.peers)
        for batch in sweep.batches:
            rows.append(
                {
                    "cap": cap,
                    "batch": batch,
                    "bias": np.square(capped.mean[0] - aim).sum() / scale,
                    "variance": capped.covariance_trace[0] / batch / scale,
                    "bias_cosine": capped.bias_cosine[0],
                    "chi2": chi2,
                }
            )
    frame = pd.DataFrame(rows)
    frame["error"] = frame["bias"] + frame["variance"]
    frame["best"] = frame["error"] == frame.groupby("batch")["error"].transform("min")
    return frame


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw bias and variance of one group, and the error by size of the batch.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        The least error of each batch is ringed.
    """
    one = frame[frame["batch"] == frame["batch"].min()]
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        names = {"bias": "squared bias", "variance": "variance", "error": "both"}
        for (column, name), look in zip(names.items(), looks(names).values(), strict=True):
            left.plot(one["cap"], one[column].where(one[column] > 1e-12), label=name, **look.line)
        left.set_title(f"{_groups(one['batch'].iloc[0])} in an update")
        left.set_ylabel(r"relative to $|\mathrm{E}\,g|^2$ without a cap")
        for batch, look in looks(dict.fromkeys(frame["batch"])).items():
            part = frame[frame["batch"] == batch]
            right.plot(part["cap"], part["error"], label=_groups(batch), **look.line)
            best = part[part["best"]].iloc[:1]
            ring = {"markersize": 8.0, "markerfacecolor": "white", "zorder": 3}
            ring |= {"markeredgecolor": look.colour, "markeredgewidth": 1.4}
            right.plot(best["cap"], best["error"], **(look.points | ring))
        right.set_title("by groups in an update")
        right.set_ylabel("squared bias + variance")
        for axes in (left, right):
            axes.set(xscale="log", yscale="log", xlabel="cap on the ratio")
            axes.legend(frameon=False)
            log_ticks(axes.xaxis)
            log_ticks(axes.yaxis)
    return figure


def _groups(batch: int, /) -> str:
    return "1 group" if batch == 1 else f"{batch} groups"


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.
    """
    best = frame[frame["best"]].groupby("batch").first()
    free = frame[frame["cap"] == frame["cap"].max()].sort_values("batch")
    tight = frame.sort_values("cap").iloc[0]
    chosen = "; ".join(
        f"{_groups(batch)}: {cap:.3g} (error {error:.2g}, without a cap {loose:.2g})"
        for batch, cap, error, loose in zip(
            best.index, best["cap"], best["error"], free["error"], strict=True
        )
    )
    return (
        f"Bias and variance of PRP under a cap (exact) where chi2 = {frame['chi2'].iloc[0]:.3g}. "
        f"The cap with the least squared bias plus variance, by groups that an update averages "
        f"over: {chosen}. The more is averaged, the less a cap is worth. The tightest cap, "
        f"{tight['cap']:.3g}, leaves a cosine to the true gradient of {tight['bias_cosine']:.3f}."
    )
