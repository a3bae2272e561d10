"""The picture of what policies sent each other, in the style of `bandit.plots`."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bandit.plots import STYLE

MAP = "Blues"
DARK = 0.6  # share of the colour scale above which figures are written in white
MOST_WRITTEN = 16  # policies with which figures still fit their cells
MOST_NAMED = 60  # policies whose names can be read


def sharing(delivered: pd.DataFrame, /) -> Figure:
    """Draw records and bytes from each source to each receiver as two heat maps.

    Parameters
    ----------
    delivered : DataFrame
        Columns ``source``, ``receiver``, ``records`` and ``bytes``; rows of the same pair are
        added up.

    Returns
    -------
    Figure

    Raises
    ------
    ValueError
        If the frame has no row.
    """
    if delivered.empty:
        raise ValueError("nothing was delivered; expected at least one row to draw")
    names = sorted({*delivered["source"], *delivered["receiver"]})
    side = min(1.9 + 0.42 * len(names), 10.0)
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(2 * side, side), layout="constrained")
        for axes, column in zip(figure.subplots(1, 2), ("records", "bytes"), strict=True):
            table = delivered.pivot_table(
                index="source", columns="receiver", values=column, aggfunc="sum"
            )
            values = table.reindex(index=names, columns=names).to_numpy(dtype=float)
            axes.imshow(values, cmap=MAP, vmin=0)
            axes.set_title(f"{column} delivered", fontsize="small")
            axes.set(xlabel="receiver", ylabel="source")
            if len(names) <= MOST_NAMED:
                axes.set_xticks(
                    range(len(names)), names, rotation=45, ha="right", fontsize="x-small"
                )
                axes.set_yticks(range(len(names)), names, fontsize="x-small")
            if len(names) <= MOST_WRITTEN:
                _write(axes, values)
    return figure


def _write(axes: Axes, values: np.ndarray, /) -> None:
    """Write each figure into its cell; nothing where nothing was sent."""
    short, largest = EngFormatter(places=None, sep=""), np.nanmax(values)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            axes.text(
                column,
                row,
                short(float(f"{value:.3g}")),
                ha="center",
                va="center",
                color="white" if value > DARK * largest else "black",
                fontsize="x-small",
            )
