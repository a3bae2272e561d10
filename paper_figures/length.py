"""Sharing rules against the length of responses: what it costs, gives, and where it points.

Source: docs/theory.md, section 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bandit.length import long_answer, plane_by_length
from bandit.plots import COLOURS, DASHES, MARKERS, STYLE
from bandit.probes import GRPO, PRP, SGT, Probe
from paper_figures import common_legend

PANELS = {
    "stability_cost": r"stability cost  tr Cov$(g)$",
    "support_gain": "support gain  $U$",
    "bias_cosine": r"$\cos(\mathrm{E}\,g,\ g^*)$",
    "ess": "effective peer rollouts",
}


def _rules() -> dict[str, Probe]:
    return {
        "GRPO": GRPO(),
        "SGT": SGT(),
        "PRP, sequence": PRP(),
        "PRP, sequence, cap 5": PRP(cap=5.0),
        "PRP, length-normalised": PRP(ratio="length_normalised"),
        "PRP, block": PRP(ratio="block"),
        "PRP, no ratio": PRP(ratio="none"),
    }


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    lengths : tuple of int
        L, tokens of a response.
    p, q : float
        Success probabilities of receiver and peer, the same at every length.
    style, late : float
        How the two differ, see `bandit.length.long_answer`.
    own, peers : int
        Group sizes G and M.
    rules : {label: Probe}
        The sharing rules to place.
    """

    lengths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    p: float = 0.05
    q: float = 0.5
    style: float = 0.6
    late: float = 0.75
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=_rules)


SWEEP = Sweep()


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact cost, gain and bias of every rule at every length.

    Returns
    -------
    DataFrame
        As `bandit.length.plane_by_length` returns it.
    """
    return plane_by_length(
        sweep.lengths,
        sweep.rules,
        world=partial(long_answer, p=sweep.p, q=sweep.q, style=sweep.style, late=sweep.late),
        own=sweep.own,
        peers=sweep.peers,
    )


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw cost, gain, direction and effective sample size against the length.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Four panels with a common length axis (log scale); costs and sample sizes on log scales.
    """
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(7.2, 5.4), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True)
        for axes, (column, name) in zip(panels.flat, PANELS.items(), strict=True):
            _panel(axes, frame, column)
            axes.set_ylabel(name)
        for axes in panels[1]:
            axes.set_xlabel("tokens of a response  $L$")
        common_legend(figure, panels[0, 0], ncols=4)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, column: str, /) -> None:
    """Draw one line a label; a label without this figure (no ratio, no ESS) is left out."""
    if column == "support_gain":
        axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    looks = zip(frame["label"].unique(), COLOURS, MARKERS, DASHES, strict=False)
    for label, colour, marker, dashes in looks:
        part = frame[(frame["label"] == label) & frame[column].notna()]
        if part.empty:
            continue
        axes.plot(
            part["length"],
            part[column],
            color=colour,
            marker=marker,
            markersize=4,
            markeredgecolor="white",
            markeredgewidth=0.4,
            linewidth=1.2,
            linestyle=(0, dashes) if dashes else "-",
            label=label,
        )
    lengths = frame["length"].unique()
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length}" for length in lengths])
    if column in ("stability_cost", "ess"):
        axes.set_yscale("log")
    sns.despine(ax=axes)


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute` with the labels of `SWEEP`.
    """
    rows = frame.set_index(["length", "label"])
    short, long = int(frame["length"].min()), int(frame["length"].max())

    def at(length: int, label: str, column: str) -> str:
        return f"{float(rows[column][length, label]):.2g}"

    def change(label: str, column: str) -> str:
        return f"from {at(short, label, column)} to {at(long, label, column)}"

    sequence, capped, normalised, block, none = (
        label for label in SWEEP.rules if label.startswith("PRP")
    )
    blocks = frame[frame["label"] == block]
    worst = int(blocks["length"].to_numpy()[blocks["bias_cosine"].to_numpy().argmin()])
    return (
        f"Responses of L = {short} to {long} tokens (exact; success probabilities of receiver and "
        f"peer do not depend on L). With the ratio of whole responses the mean is right at every "
        f"length, but chi-squared goes {change(sequence, 'chi2')} and the cost "
        f"{change(sequence, 'stability_cost')}, while GRPO's goes "
        f"{change('GRPO', 'stability_cost')}. A cap brings the cost at L = {long} to "
        f"{at(long, capped, 'stability_cost')} and the support gain to "
        f"{at(long, capped, 'support_gain')}, from {at(long, sequence, 'support_gain')} without "
        f"it. The length-normalised ratio keeps {at(long, normalised, 'ess')} effective peer "
        f"rollouts and loses the direction: the cosine to the true gradient goes "
        f"{change(normalised, 'bias_cosine')}, as it does without a ratio "
        f"({change(none, 'bias_cosine')}). The cosine of the block ratio is lowest at L = {worst}, "
        f"{at(worst, block, 'bias_cosine')}; at L = {long} it is {at(long, block, 'bias_cosine')}, "
        f"with the peers' part {at(long, block, 'peer_shrinkage')} times as long as the true "
        f"gradient and a support gain of {at(long, block, 'support_gain')}. SGT costs "
        f"{at(long, 'SGT', 'relative_cost')} times what GRPO costs, but its gain goes "
        f"{change('SGT', 'support_gain')} and its cosine {change('SGT', 'bias_cosine')}: "
        "a rescue also teaches the peer's style, L tokens of it."
    )
