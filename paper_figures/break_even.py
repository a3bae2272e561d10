"""When does sharing beat sampling more? Sharing counted in own rollouts, over p and q.

Source: docs/theory.md, section 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from bandit import World, tradeoff
from bandit.plots import STYLE
from bandit.probes import Probe
from bandit.probes.group import Mask
from paper_figures import RULES

ROWS = {"extra_for_error": "same error", "extra_for_gain": "same support gain"}
ARMS = 8


def _rules() -> dict[str, Probe]:
    return {label: RULES[label] for label in ("SGT", "PRP", "PRP, no ratio")}


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    success, peer_success : tuple of float
        p, the receiver's, and q, the peer's success probability.
    own, peers : int
        Group sizes G and M.
    most : int
        Extra own rollouts looked at.
    rules : {label: Probe}
        The sharing rules, a column each.
    """

    success: tuple[float, ...] = (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3)
    peer_success: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 0.6, 0.9)
    own: int = 8
    peers: int = 8
    most: int = 512
    rules: Mapping[str, Probe] = field(default_factory=_rules)


SWEEP = Sweep()


def world(p: float, q: float, /) -> World:
    """One context with two success arms that receiver and peer weigh differently.

    The receiver plays them with probability ``0.9 p`` and ``0.1 p``, the peer with ``0.2 q`` and
    ``0.8 q``; both spread the rest evenly. With q = 0.5 it is `bandit.worlds.rare_success`.
    """
    rest = np.ones(ARMS - 2) / (ARMS - 2)
    receiver = np.concatenate([[0.9 * p, 0.1 * p], (1 - p) * rest])
    peer = np.concatenate([[0.2 * q, 0.8 * q], (1 - q) * rest])
    return World.tabular([[receiver], [peer]], [[1.0, 1.0, *np.zeros(ARMS - 2)]])


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Extra own rollouts that each rule equals, exactly, at every p and q.

    Returns
    -------
    DataFrame
        As `bandit.tradeoff.break_even_map` returns it, columns ``p`` and ``q`` first, and
        ``own``, ``peers`` and ``most`` last.
    """
    return tradeoff.break_even_map(
        {(p, q): world(p, q) for p in sweep.success for q in sweep.peer_success},
        sweep.rules,
        parameter=("p", "q"),
        own=sweep.own,
        peers=sweep.peers,
        most=sweep.most,
    ).assign(own=sweep.own, peers=sweep.peers, most=sweep.most)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw a map for each rule (columns) and figure compared (rows), every cell with its number.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        p to the right, q upwards. The line encloses the cells whose number is above M: there a
        peer's rollout is worth more than one's own.
    """
    labels = list(dict.fromkeys(frame["label"]))
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(1.0 + 2.5 * len(labels), 5.2), layout="constrained")
        panels = figure.subplots(len(ROWS), len(labels), sharex=True, sharey=True, squeeze=False)
        for line, (column, title) in zip(panels, ROWS.items(), strict=True):
            for axes, label in zip(line, labels, strict=True):
                _panel(axes, frame[frame["label"] == label], column)
            line[0].set_ylabel(f"{title}\n\npeer's success  $q$")
        for axes, label in zip(panels[0], labels, strict=True):
            axes.set_title(label)
        for axes in panels[-1]:
            axes.set_xlabel("receiver's success  $p$")
    return figure


def _panel(axes: Axes, part: pd.DataFrame, column: str, /) -> None:
    table = part.pivot(index="q", columns="p", values=column)
    most, shared = part["most"].iloc[0], part["peers"].iloc[0]
    extra = table.to_numpy()
    # one scale for all panels; the darkest colour keeps "more than `most`" apart
    shade = np.log1p(np.minimum(extra, 2 * most)) / np.log1p(2 * most)
    axes.pcolormesh(shade, cmap="Blues", vmin=0.0, vmax=1.0, edgecolor="white", linewidth=0.8)
    for (i, j), value in np.ndenumerate(extra):
        axes.text(
            j + 0.5,
            i + 0.5,
            _number(value, most),
            ha="center",
            va="center",
            fontsize="small",
            fontweight="bold" if _above(value, shared) else "normal",
            color="white" if shade[i, j] > 0.6 else "black",
        )
    axes.add_collection(
        LineCollection(_outline(_above(extra, shared)), color="#D55E00", linewidth=1.8)
    )
    axes.set_xticks(np.arange(table.shape[1]) + 0.5, [f"{p:g}" for p in table.columns])
    axes.set_yticks(np.arange(table.shape[0]) + 0.5, [f"{q:g}" for q in table.index])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _above(extra: Any, shared: int, /) -> Any:
    """Above M, rounding apart: where q = p the exact ratio is worth M in gain, no more."""
    return extra > shared * (1 + 1e-6)


def _number(extra: float, most: int, /) -> str:
    if np.isinf(extra):
        return f">{most}"
    return f"{extra:.0f}" if extra == 0 or extra >= 9.95 else f"{extra:.1f}"


def _outline(inside: Mask, /) -> list[list[tuple[int, int]]]:
    """Edges between cells that are inside and cells that are not, the border included."""
    padded = np.pad(inside, 1)
    across = np.argwhere(padded[:, 1:] != padded[:, :-1])
    along = np.argwhere(padded[1:] != padded[:-1])
    return [[(j, i - 1), (j, i)] for i, j in across.tolist()] + [
        [(j - 1, i), (j, i)] for i, j in along.tolist()
    ]


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.
    """
    first = frame.iloc[0]
    above = _above(frame.set_index("label")[list(ROWS)], first["peers"])
    beaten = above.groupby(level=0, sort=False).sum()
    cells = len(frame) // frame["label"].nunique()

    def share(column: str) -> str:
        return ", ".join(f"{label} {beaten.loc[label, column]}" for label in beaten.index)

    return (
        f"Own rollouts that GRPO with G = {first['own']} would need beyond G to do what sharing "
        f"does with M = {first['peers']} rollouts of a peer: to have the same error at the best "
        f"learning rate (above), and the same support gain when they are drawn where the first G "
        f"had no success (below). Exact; 0: GRPO does as well with G. Inside the line a peer's "
        f"rollout is worth more than one of one's own. Of {cells} regimes that holds for the error "
        f"in: {share('extra_for_error')}; for the gain in: {share('extra_for_gain')}."
    )
