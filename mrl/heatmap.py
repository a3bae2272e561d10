"""What heat maps have in common: figures in their cells, and names along their sides."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

MAP = "Blues"
DARK = 0.6  # share of the colour scale above which figures are written in white


def write_cells(
    axes: Axes,
    values: NDArray[np.float64],
    depth: NDArray[np.float64],
    text: Callable[[float], str],
    /,
) -> None:
    """Write each finite figure into its cell; `depth` is its place on the colour scale, 0 to 1."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            axes.text(
                column,
                row,
                text(value),
                ha="center",
                va="center",
                color="white" if depth[row, column] > DARK else "black",
                fontsize="x-small",
            )


def name_sides(axes: Axes, names: Sequence[str], /) -> None:
    """Name rows and columns alike."""
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize="x-small")
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
