"""Tidy frame in, figure out. No figure touches pyplot or changes matplotlib's settings."""

import base64
import io
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
COLOURS = tuple(sns.color_palette("colorblind", as_cmap=True))
PANEL = (3.6, 2.5)
COLUMNS = 3


@contextmanager
def theme() -> Iterator[None]:
    """Apply the report's look to figures made and saved inside the block."""
    look = {
        **sns.axes_style("whitegrid"),
        **sns.plotting_context("paper"),
        "figure.constrained_layout.use": True,
        "font.family": ["sans-serif"],
        "font.sans-serif": ["DejaVu Sans"],
        "axes.edgecolor": "#9aa3ad",
        "grid.color": "#e4e8ec",
        "axes.titlesize": 9,
        "axes.titleweight": "bold",
        # Labels hold names that others chose: a dollar sign is no formula.
        "text.parse_math": False,
        # Text stays text, drawn by the browser in any script; ids do not depend on the time.
        "svg.fonttype": "none",
        "svg.hashsalt": "mrl",
    }
    with mpl.rc_context(look):
        yield


def curves(
    frame: pd.DataFrame, /, *, ylabel: str, xlabel: str = "rounds completed", unit: bool = False
) -> Figure:
    """Lines with interval bands, one panel a facet.

    Parameters
    ----------
    frame : DataFrame
        Columns facet, series, x, value, low, high; no band where low or high is NaN.
    ylabel, xlabel : str
        Axis labels.
    unit : bool
        Whether values lie between 0 and 1, so that the axis shows just that.

    Returns
    -------
    Figure
        Series differ in colour, marker and line.
    """
    if frame.empty:
        return _nothing(xlabel, ylabel)
    series = list(dict.fromkeys(frame["series"]))
    facets = list(dict.fromkeys(frame["facet"]))
    with theme():
        figure, axes = _panels(len(facets), sharey=unit)
        for ax, facet in zip(axes, facets, strict=True):
            part = frame[frame["facet"] == facet]
            for i, name in enumerate(series):
                _line(ax, part[part["series"] == name].sort_values("x"), i)
            ax.set(xlabel=xlabel, ylabel=ylabel, title=_wrap(facet, 42))
            ax.margins(x=0.03)
            if unit:
                ax.set_ylim(-0.03, 1.03)
        _legend(figure, [axes[0].plot([], [], **_style(i))[0] for i in range(len(series))], series)
    return figure


def intervals(frame: pd.DataFrame, /, *, xlabel: str) -> Figure:
    """Dots with intervals for each cohort after training, and a hollow dot before it.

    Parameters
    ----------
    frame : DataFrame
        Columns facet, cohort, start, value, low, high.
    xlabel : str
        What is measured.
    """
    if frame.empty:
        return _nothing(xlabel)
    names = list(dict.fromkeys(frame["cohort"]))
    facets = list(dict.fromkeys(frame["facet"]))
    row = {name: i for i, name in enumerate(names)}
    with theme():
        figure, axes = _panels(len(facets), height=0.7 + 0.32 * len(names), sharey=True)
        for ax, facet in zip(axes, facets, strict=True):
            for point in frame[frame["facet"] == facet].itertuples():
                i = row[point.cohort]
                colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
                ax.plot([point.low, point.high], [i, i], color=colour, linewidth=2.2)
                ax.plot(point.value, i, marker=marker, color=colour, linestyle="")
                ax.plot(point.start, i, marker="o", color="#5b6570", fillstyle="none", linestyle="")
            ax.set(xlabel=xlabel, title=_wrap(facet, 42), xlim=(-0.03, 1.03))
            ax.set_yticks(range(len(names)), [_wrap(name, 30) for name in names])
            ax.set_ylim(len(names) - 0.5, -0.5)
        before = axes[0].plot([], [], marker="o", color="#5b6570", fillstyle="none", linestyle="")
        after = axes[0].plot([], [], marker="o", color="#5b6570", linestyle="-", linewidth=2.2)
        _legend(figure, [*before, *after], ["before training", "after, 95% interval"])
    return figure


def agreement(frame: pd.DataFrame, /, *, xlabel: str, ylabel: str) -> Figure:
    """Measured against predicted values with intervals, and the line on which they are equal.

    Parameters
    ----------
    frame : DataFrame
        Columns facet, predicted, measured, low, high; rows without a measured value are left out.
    xlabel, ylabel : str
        Axis labels.
    """
    if frame.empty:
        return _nothing(xlabel, ylabel)
    facets = list(dict.fromkeys(frame["facet"]))
    with theme():
        figure, axes = _panels(len(facets), height=3.2, sharey=True)
        for ax, facet in zip(axes, facets, strict=True):
            part = frame[(frame["facet"] == facet) & frame["measured"].notna()]
            ax.axhline(0, color="#9aa3ad", linewidth=0.8)
            ax.axline((0, 0), slope=1, color="#5b6570", linewidth=1, linestyle="--")
            ax.vlines(part["predicted"], part["low"], part["high"], color=COLOURS[0], alpha=0.35)
            ax.plot(part["predicted"], part["measured"], marker="o", markersize=4, linestyle="",
                    color=COLOURS[0])  # fmt: skip
            ax.set(xlabel=xlabel, ylabel=ylabel, title=_wrap(facet, 42))
            ax.margins(x=0.08)
    return figure


def stacked(frame: pd.DataFrame, /, *, part: str, value: str, xlabel: str) -> Figure:
    """Horizontal stacked bars, one a row.

    Parameters
    ----------
    frame : DataFrame
        Columns ``row`` and those named by `part` (the pieces of a bar) and `value`.
    part, value : str
        Column names.
    xlabel : str
        What the length of a bar is.
    """
    if frame.empty:
        return _nothing(xlabel)
    rows = list(dict.fromkeys(frame["row"]))
    parts = list(dict.fromkeys(frame[part]))
    table = frame.pivot_table(index="row", columns=part, values=value, aggfunc="sum", sort=False)
    table = table.reindex(index=rows, columns=parts).fillna(0.0)
    with theme():
        figure = Figure(figsize=(7.4, 1.0 + 0.36 * len(rows)))
        ax = figure.subplots()
        left = np.zeros(len(rows))
        bars = []
        for i, name in enumerate(parts):
            width = table[name].to_numpy(float)
            look = {"color": COLOURS[i % len(COLOURS)], "hatch": HATCHES[i % len(HATCHES)]}
            bars.append(ax.barh(range(len(rows)), width, left=left, edgecolor="white", **look))
            left += width
        ax.set_yticks(range(len(rows)), [_wrap(name, 40) for name in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_xlabel(xlabel)
        ax.grid(visible=False, axis="y")
        _legend(figure, bars, parts)
    return figure


def _nothing(xlabel: str, ylabel: str = "", /) -> Figure:
    """The figure of a frame without rows: it says so, where an error would end a whole report."""
    with theme():
        figure, (ax,) = _panels(1, sharey=False)
        ax.set(xlabel=xlabel, ylabel=ylabel, xticks=[], yticks=[])
        ax.text(0.5, 0.5, "nothing was recorded", ha="center", va="center", color="#5b6570",
                transform=ax.transAxes)  # fmt: skip
    return figure


def to_data_uri(figure: Figure, /) -> str:
    """Write `figure` as an SVG image that needs no file: a ``data:`` address."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with theme(), warnings.catch_warnings():
        # The browser draws the text, with fonts for scripts that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=nothing)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _panels(count: int, /, *, height: float = PANEL[1], sharey: bool) -> tuple[Figure, list[Axes]]:
    columns = min(count, COLUMNS)
    lines = -(-count // columns)
    # A single panel may be wider; room above for the legend.
    width = 6.4 if count == 1 else PANEL[0] * columns
    figure = Figure(figsize=(width, height * lines + 0.3))
    axes = list(figure.subplots(lines, columns, sharey=sharey, squeeze=False).flat)
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def _style(i: int, /) -> dict[str, Any]:
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": LINES[i % len(LINES)],
        "markersize": 4,
        "linewidth": 1.4,
    }


def _line(ax: Axes, points: pd.DataFrame, i: int, /) -> None:
    values = points[["x", "value", "low", "high"]].to_numpy(float)
    x, value, low, high = values.T
    every = max(1, len(x) // 12)
    ax.plot(x, value, **_style(i), markevery=every)
    if len(x) == 1:
        ax.vlines(x, low, high, color=COLOURS[i % len(COLOURS)])
    else:
        ax.fill_between(x, low, high, color=COLOURS[i % len(COLOURS)], alpha=0.18, linewidth=0)


def _legend(figure: Figure, handles: list[Any], labels: list[str], /) -> None:
    # A line holds about 14 characters an inch; six go to a handle and its gaps.
    room = int(14 * figure.get_figwidth())
    widths = [len(label) + 6 for label in labels]
    columns = len(labels) if sum(widths) <= room else max(1, room // max(widths))
    figure.legend(
        handles, [_wrap(label, 80) for label in labels],
        loc="outside upper center", ncols=columns, frameon=False,
    )  # fmt: skip


def _wrap(text: str, width: int, /) -> str:
    return "\n".join(textwrap.wrap(text, width)) or text
