"""Pictures of audits, in the style of `bandit.plots`."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from bandit.plots import COLOURS, STYLE
from mrl.heatmap import MAP, name_sides, write_cells
from mrl.tokens.audit import TokenAudit
from mrl.tokens.residual import LARGE

LARGEST = 5  # tokens of a block; larger blocks are drawn together


def audit(
    report: TokenAudit,
    /,
    *,
    source: str = "A",
    receiver: str = "B",
    residual: Mapping[float, float] | None = None,
    number: int | None = None,
) -> Figure:
    """Draw an audit: shares by kind of text, block sizes, and the residual if it is known.

    Parameters
    ----------
    report : TokenAudit
        With at least one text.
    source, receiver : str
        Names of the two tokenizers.
    residual : mapping of float to float, optional
        Quantiles of the residual's magnitude, in nats, by level. Default: those of the report's
        own rollouts.
    number : int, optional
        Rollouts that these quantiles are of. Default: those of the report with a residual.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        If the report has no text.
    """
    if report.texts.empty:
        raise ValueError("the audit has no text to draw; expected at least one")
    spread = report.residual
    if residual is None and spread is not None:
        residual = dict(zip(spread.levels, spread.magnitude, strict=True))
        number = int(report.rollouts["residual"].notna().sum())
    panels = 3 if residual else 2
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(0.8 + 3.4 * panels, 3.3), layout="constrained")
        axes = figure.subplots(1, panels)
        _shares(axes[0], report)
        _sizes(axes[1], report.blocks, source, receiver)
        if residual:
            _residual(axes[2], residual, number)
        title = f"from {source} to {receiver}"
        if count := len(report.rollouts):
            title += f"; {report.canonical_share:.1%} of {count:,} rollouts canonical"
        figure.suptitle(title, fontsize="medium")
    return figure


def families(frame: pd.DataFrame, /) -> Figure:
    """Draw the share of 1:1 blocks of every pair of tokenizers, a panel for each kind of text.

    Parameters
    ----------
    frame : DataFrame
        Columns ``source``, ``receiver``, ``kind`` and ``one_to_one_share``, as
        `mrl.tokens.audit.compare` returns.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        If the frame has no row.
    """
    if frame.empty:
        raise ValueError("there is no pair of tokenizers to draw; expected at least two tokenizers")
    kinds = list(dict.fromkeys(frame["kind"]))
    names = list(dict.fromkeys([*frame["source"], *frame["receiver"]]))
    columns = min(len(kinds), 2)
    rows = -(-len(kinds) // columns)
    side = 1.4 + 0.42 * len(names)
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(columns * (side + 0.6), rows * side), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for kind, axes in zip(kinds, panels, strict=False):
            part = frame[frame["kind"] == kind]
            table = part.pivot(index="source", columns="receiver", values="one_to_one_share")
            table = 100 * table.reindex(index=names, columns=names)
            axes.imshow(table, cmap=MAP, vmin=0, vmax=100)
            write_cells(axes, table.to_numpy(), table.to_numpy() / 100, "{:.0f}".format)
            name_sides(axes, names)
            axes.set(xlabel="receiver", ylabel="source")
            axes.set_title(f"{kind}: blocks of one token each (%)", fontsize="small")
        for axes in list(panels)[: rows * columns - len(kinds)]:
            axes.set_visible(False)
    return figure


def _shares(axes: Axes, report: TokenAudit, /) -> None:
    """Bars: what share of a kind's blocks is 1:1, and of its texts refused."""
    found = report.by_kind.iloc[::-1]
    place = np.arange(len(found))
    bars = (("1:1 blocks", "one_to_one_share", 0.2), ("refused texts", "refused_share", -0.2))
    for (label, column, shift), colour in zip(bars, COLOURS, strict=False):
        values = 100 * found[column].to_numpy(dtype=float)
        axes.barh(place + shift, values, height=0.36, color=colour, label=label)
        for y, value in zip(place + shift, values, strict=True):
            said = "-" if np.isnan(value) else f"{value:.1f}"
            axes.annotate(
                said,
                (0 if np.isnan(value) else value, y),
                xytext=(2, 0),
                textcoords="offset points",
                va="center",
                fontsize="x-small",
            )
    axes.set_yticks(place, [str(kind) for kind in found["kind"]])
    axes.set(xlim=(0, 116), ylim=(-1, len(found)), xlabel="share (%)")
    axes.legend(frameon=False, fontsize="x-small", loc="lower center", bbox_to_anchor=(0.5, 1))


def _sizes(axes: Axes, blocks: pd.DataFrame, source: str, receiver: str, /) -> None:
    """Map of block sizes: tokens on either side, shares on a log scale."""
    table = np.zeros((LARGEST, LARGEST))
    cut = blocks[["tokens_a", "tokens_b"]].clip(1, LARGEST).to_numpy() - 1
    np.add.at(table, (cut[:, 0], cut[:, 1]), 100 * blocks["share"].to_numpy())
    shown = np.where(table > 0, table, np.nan)
    norm = LogNorm(1e-3, 100, clip=True)
    axes.imshow(shown, cmap=MAP, norm=norm, origin="lower")
    depth = np.asarray(norm(np.where(table > 0, table, 1e-3)))
    write_cells(axes, shown, depth, "{:.2g}".format)
    labels = [*map(str, range(1, LARGEST)), f"{LARGEST}+"]
    axes.set_xticks(range(LARGEST), labels)
    axes.set_yticks(range(LARGEST), labels)
    axes.set(xlabel=f"tokens of {receiver}", ylabel=f"tokens of {source}")
    axes.set_title("share of blocks (%)", fontsize="small")


def _residual(axes: Axes, quantiles: Mapping[float, float], number: int | None, /) -> None:
    """Bars of quantiles, with the line above which a ratio is off by a factor of 148."""
    levels = sorted(quantiles)
    place = np.arange(len(levels))
    bars = axes.bar(place, [quantiles[level] for level in levels], color=COLOURS[2], width=0.6)
    axes.bar_label(bars, fmt="%.2g", fontsize="x-small", padding=1)
    axes.axhline(LARGE, color=COLOURS[1], linewidth=0.9, linestyle="--")
    axes.set_xticks(place, [f"{level:.0%}" for level in levels])
    of = "" if number is None else f"{number:,} "
    axes.set(xlabel=f"quantile over {of}rollouts", ylabel="|residual| (nats)")
    axes.set_title("source's canonicality residual", fontsize="small")
