"""The picture of what policies sent each other, in the style of `bandit.plots`."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bandit.plots import STYLE
from mrl.heatmap import MAP, name_sides, write_cells

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
                name_sides(axes, names)
            if len(names) <= MOST_WRITTEN:
                write_cells(axes, values, values / np.nanmax(values), _short)
    return figure


def _short(value: float, /) -> str:
    return EngFormatter(places=None, sep="")(float(f"{value:.3g}"))
