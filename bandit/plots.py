"""Figures from tidy frames; no figure sets a theme outside itself."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from bandit.looks import COLOURS, DASHES, MARKERS, MAX_LABELS, STYLE, Look, log_ticks, looks
from bandit.probes.group import Array

__all__ = [
    "COLOURS",
    "DASHES",
    "MARKERS",
    "MAX_LABELS",
    "STYLE",
    "Look",
    "curves",
    "frontier",
    "log_ticks",
    "looks",
    "mean_lines",
    "plane",
]

LEVEL, RESAMPLES = 0.95, 400
NAMED = 8


def plane(frame: pd.DataFrame, /, *, title: str | None = None) -> Figure:
    """Draw the stability-support plane: what sharing costs against what it gives.

    Parameters
    ----------
    frame : DataFrame
        Columns ``label``, ``stability_cost`` and ``support_gain``, as `bandit.tradeoff.plane`,
        `aggregate` or `sweep` return them; several rows of a label are several points.
    title : str, optional
        Above the axes.

    Returns
    -------
    Figure
        Stability cost (log scale) to the right, support gain upwards; rows without a cost or
        a gain (NaN, or a cost of 0) have no place on it and are named below the axes.

    Raises
    ------
    ValueError
        If a column is missing, no row can be drawn, or there are more than `MAX_LABELS` labels.
    """
    drawn, left_out = _drawable(frame, "label")
    look = looks(frame["label"].unique())
    with mpl.rc_context(rc=STYLE):
        figure, axes = _empty_plane(title, left_out)
        sns.scatterplot(
            drawn,
            x="stability_cost",
            y="support_gain",
            hue="label",
            style="label",
            hue_order=list(look),
            style_order=list(look),
            palette={label: style.colour for label, style in look.items()},
            markers={label: style.marker for label, style in look.items()},
            legend=False,
            s=55,
            ax=axes,
        )
        axes.set(xlabel=r"stability cost  tr Cov$(g)$", ylabel="support gain  $U$")
        _name_points(axes, drawn.groupby("label", sort=False).tail(1))
        log_ticks(axes.xaxis)
    return figure


def frontier(frame: pd.DataFrame, /, *, by: str | None = None, title: str | None = None) -> Figure:
    """Draw many settings on the plane, with stairs through those that none beats on both axes.

    Parameters
    ----------
    frame : DataFrame
        Columns ``label``, ``stability_cost``, ``support_gain`` and ``on_frontier`` (bool), as
        `bandit.tradeoff.frontier` returns them.
    by : str, optional
        The column whose values are told apart by colour and marker; default ``kind`` if there is
        such a column, else ``label``.
    title : str, optional
        Above the axes.

    Returns
    -------
    Figure
        Settings on the frontier are large and joined by stairs, the others small and pale. At most
        `NAMED` of the frontier are named, evenly from end to end. Values of `by` that have no
        point (no gain, or a cost of 0) are named below the axes.

    Raises
    ------
    ValueError
        If a column is missing, no row can be drawn, or `by` has more than `MAX_LABELS` values.
    """
    by = by or ("kind" if "kind" in frame.columns else "label")
    _require(frame, ("on_frontier",))
    drawn, left_out = _drawable(frame, by)
    best = drawn[drawn["on_frontier"]].sort_values(["stability_cost", "support_gain"])
    with mpl.rc_context(rc=STYLE):
        figure, axes = _empty_plane(title, left_out)
        stairs: Any = {"drawstyle": "steps-post", "color": "0.45", "linewidth": 1.0, "zorder": 1}
        axes.plot(best["stability_cost"], best["support_gain"], **stairs)
        for value, look in looks(frame[by].unique()).items():
            part = drawn[drawn[by] == value]
            for on_it, size, alpha in ((False, 3.5, 0.45), (True, 7.0, 1.0)):
                rows = part[part["on_frontier"] == on_it]
                settings = look.points | {"markersize": size, "alpha": alpha, "zorder": 2 + on_it}
                axes.plot(rows["stability_cost"], rows["support_gain"], **settings)
            if not part.empty:
                axes.plot([], [], label=str(value), **look.points)
        axes.set(xlabel=r"stability cost  tr Cov$(g)$", ylabel="support gain  $U$")
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        named = np.unique(np.linspace(0, len(best) - 1, min(NAMED, len(best))).round().astype(int))
        _name_points(axes, best.iloc[named])
        log_ticks(axes.xaxis)
    return figure


def curves(
    frame: pd.DataFrame, /, *, y: str = "value", by: str = "policy", title: str | None = None
) -> Figure:
    """Draw learning curves, with bootstrap intervals over replicas.

    Parameters
    ----------
    frame : DataFrame
        As returned by `bandit.dynamics.run`; runs of several rules may be concatenated with a
        column that names them.
    y : str
        The column to draw against ``step``.
    by : str
        The column whose values are told apart. Where it is not ``policy``, each policy has a
        panel of its own.
    title : str, optional
        Above the panels.

    Returns
    -------
    Figure
        Means over replicas, with 95% intervals.

    Raises
    ------
    ValueError
        If a column is missing, or there are more than `MAX_LABELS` values to tell apart.
    """
    _require(frame, ("step", "policy", "replica", y, by))
    policies = [None] if by == "policy" else sorted(frame["policy"].unique())
    look = looks(sorted(frame[by].unique()))
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(1.2 + 3.6 * len(policies), 3.2), layout="constrained")
        panels = figure.subplots(1, len(policies), squeeze=False, sharey=True)[0]
        for axes, policy in zip(panels, policies, strict=True):
            part = frame if policy is None else frame[frame["policy"] == policy]
            mean_lines(axes, part, look, y=y, by=by)
            axes.set_title("" if policy is None else f"policy {policy}")
            axes.set_xlabel("step")
        panels[0].set_ylabel(y.replace("_", " "))
        panels[-1].legend(title=by, frameon=False)
        figure.suptitle(title or "")
    return figure


def mean_lines(
    axes: Axes, frame: pd.DataFrame, look: dict[Any, Look], /, *, y: str, by: str, marks: int = 0
) -> None:
    """Draw means of runs against their steps, with bootstrap intervals over replicas.

    Parameters
    ----------
    axes : Axes
        Where to draw.
    frame : DataFrame
        Columns ``step``, ``replica``, `y` and `by`; several rows of a replica at a step (its
        policies) are averaged first. NaN is left out.
    look : {label: Look}
        How to draw each value of `by`, in this order.
    y, by : str
        Columns to draw and to tell apart.
    marks : int
        Markers on each line; 0 for none.
    """
    for label, style in look.items():
        part = frame[frame[by] == label].dropna(subset=[y])
        if part.empty:
            continue
        runs = part.groupby(["step", "replica"])[y].mean().unstack()
        settings = style.line
        if marks:
            settings = style.both | {"markevery": max(1, len(runs) // marks)}
        low, high = _interval(runs.to_numpy())
        axes.plot(runs.index, runs.mean(axis=1), label=str(label), **settings)
        axes.fill_between(runs.index, low, high, color=style.colour, alpha=0.15, linewidth=0)


def _interval(runs: Array, /) -> Array:
    """Percentile interval of each row's mean over its columns, shape (2, rows); NaN left out."""
    n = runs.shape[1]
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).T
    known = ~np.isnan(runs)
    total, weight = np.where(known, runs, 0.0) @ counts, known @ counts
    means = np.divide(total, weight, out=np.full_like(total, np.nan), where=weight > 0)
    return np.nanquantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)


def _drawable(frame: pd.DataFrame, by: str, /) -> tuple[pd.DataFrame, list[str]]:
    """Rows that have a place on the plane, and the values of `by` that have none."""
    _require(frame, ("label", "stability_cost", "support_gain", by))
    drawn = frame[frame["support_gain"].notna() & (frame["stability_cost"] > 0)]
    if drawn.empty:
        raise ValueError("no row has a positive stability_cost and a support_gain; expected one")
    return drawn, [str(value) for value in frame[by].unique() if value not in set(drawn[by])]


def _empty_plane(title: str | None, left_out: Sequence[str], /) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)
    axes.set(xscale="log", title=title or "")
    if left_out:
        figure.supxlabel(f"not on the plane: {', '.join(left_out)}", fontsize="small")
    return figure, axes


def _name_points(axes: Axes, points: pd.DataFrame, /) -> None:
    """Write each label above its point, higher up where another label or point is in the way."""
    figure: Any = axes.figure
    axes.margins(x=0.15, y=0.15)
    figure.draw_without_rendering()
    pixels = figure.dpi / 72
    where = points[["stability_cost", "support_gain"]].to_numpy()
    style: Any = {"ha": "center", "va": "bottom", "fontsize": 0.85 * mpl.rcParams["font.size"]}
    line = {"arrowstyle": "-", "color": "0.7", "linewidth": 0.6}
    texts = [
        axes.annotate(
            label, tuple(xy), (0, 0), textcoords="offset points", arrowprops=line, **style
        )
        for label, xy in zip(points["label"], where, strict=True)
    ]
    boxes = [Text.get_window_extent(text) for text in texts]  # without the arrow
    sizes = np.array([(box.width, box.height) for box in boxes]) / pixels + 2
    for _ in range(5):  # more room above moves the points, so that labels are placed anew
        at = axes.transData.transform(where) / pixels  # in points, the unit of the text
        spots = _spots(at, sizes, axes.bbox.x0 / pixels, axes.bbox.x1 / pixels)
        top = (spots[:, 1] + sizes[:, 1]).max() * pixels
        if top <= axes.bbox.y1:
            break
        axes.set_ylim(top=axes.transData.inverted().transform((0.0, top))[1])
    for text, (x, y) in zip(texts, spots - at, strict=True):
        text.set_position((x, y))
        if y <= 8 and text.arrow_patch is not None:
            text.arrow_patch.set_visible(False)


def _spots(at: Array, sizes: Array, low: float, high: float, /) -> Array:
    """Middle of the lower edge of each label, from the lowest point upwards; shape (n, 2)."""
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    spots = np.empty_like(at)
    for i in np.lexsort((at[:, 0], at[:, 1])):
        half, height = sizes[i, 0] / 2, sizes[i, 1]
        x, y = np.clip(at[i, 0], low + half, high - half), at[i, 1] + 6
        while any(
            x - half < right and left < x + half and y < top and bottom < y + height
            for left, bottom, right, top in taken
        ):
            y += 2
        taken.append((x - half, y, x + half, y + height))
        spots[i] = x, y
    return spots


def _require(frame: pd.DataFrame, columns: Sequence[str], /) -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks columns {missing}; it has {list(frame.columns)}")
