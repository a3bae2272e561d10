"""Figures from tidy frames; no figure sets a theme outside itself.

Colours are Okabe and Ito's, told apart by colour-blind readers; markers and dashes differ as well,
so that the figures can be read in grey.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",
)
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
DASHES = ("", (4, 1.5), (1, 1), (3, 1, 1, 1), (5, 1, 1, 1, 1, 1), (2, 2), (6, 2), (1, 3))
STYLE: Any = {
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
}


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
        If a column is missing, or no row can be drawn.
    """
    _require(frame, ("label", "stability_cost", "support_gain"))
    drawn = frame[frame["support_gain"].notna() & (frame["stability_cost"] > 0)]
    left_out = [label for label in frame["label"].unique() if label not in set(drawn["label"])]
    if drawn.empty:
        raise ValueError("no row has a positive stability_cost and a support_gain; expected one")
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(5.4, 3.8), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)
        sns.scatterplot(
            drawn,
            x="stability_cost",
            y="support_gain",
            hue="label",
            style="label",
            legend=False,
            s=55,
            ax=axes,
            **_looks(list(frame["label"].unique()), "markers"),
        )
        axes.set(xscale="log", xlabel=r"stability cost  tr Cov$(g)$", title=title or "")
        axes.set_ylabel("support gain  $U$")
        last = drawn.groupby("label", sort=False).tail(1)
        _name_points(figure, last)
        if left_out:
            figure.supxlabel(f"not on the plane: {', '.join(left_out)}", fontsize="small")
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
        If a column is missing.
    """
    _require(frame, ("step", "policy", y, by))
    policies = [None] if by == "policy" else sorted(frame["policy"].unique())
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(1.2 + 3.6 * len(policies), 3.2), layout="constrained")
        panels = figure.subplots(1, len(policies), squeeze=False, sharey=True)[0]
        for axes, policy in zip(panels, policies, strict=True):
            part = frame if policy is None else frame[frame["policy"] == policy]
            sns.lineplot(
                part.dropna(subset=[y]),
                x="step",
                y=y,
                hue=by,
                style=by,
                seed=0,
                ax=axes,
                legend="full" if axes is panels[-1] else False,
                **_looks(sorted(frame[by].unique()), "dashes"),
            )
            axes.set(xlabel="step", ylabel=y.replace("_", " "))
            axes.set_title("" if policy is None else f"policy {policy}")
        figure.suptitle(title or "")
    return figure


def _looks(labels: Sequence[Any], kind: str, /) -> dict[str, Any]:
    """Colour and marker or dash of each label."""
    order = list(labels)
    if len(order) > len(COLOURS):
        raise ValueError(f"got {len(order)} labels to tell apart; expected at most {len(COLOURS)}")
    cycle: tuple[Any, ...] = MARKERS if kind == "markers" else DASHES
    return {
        "hue_order": order,
        "style_order": order,
        "palette": dict(zip(order, COLOURS, strict=False)),
        kind: dict(zip(order, cycle, strict=False)),
    }


def _name_points(figure: Figure, points: pd.DataFrame, /) -> None:
    """Write each label above its point, higher up where another label or point is in the way."""
    axes = figure.axes[0]
    axes.margins(x=0.15, y=0.15)
    figure.draw_without_rendering()
    pixels = figure.dpi / 72
    size = 0.85 * mpl.rcParams["font.size"]
    where = points[["stability_cost", "support_gain"]].to_numpy()
    at = axes.transData.transform(where) / pixels  # in points, the unit of the text
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    low, high = axes.bbox.x0 / pixels, axes.bbox.x1 / pixels
    for i in np.lexsort((at[:, 0], at[:, 1])):
        half = 0.29 * size * len(points["label"].iloc[i])
        x = np.clip(at[i, 0], low + half, high - half)
        y = at[i, 1] + 6
        while any(
            x - half < right and left < x + half and y < top and bottom < y + size
            for left, bottom, right, top in taken
        ):
            y += 2
        taken.append((x - half, y, x + half, y + size))
        moved = y > at[i, 1] + 8
        axes.annotate(
            points["label"].iloc[i],
            where[i],
            xytext=(x - at[i, 0], y - at[i, 1]),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=size,
            arrowprops={"arrowstyle": "-", "color": "0.7", "linewidth": 0.6} if moved else None,
        )


def _require(frame: pd.DataFrame, columns: Sequence[str], /) -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks columns {missing}; it has {list(frame.columns)}")
