"""How figures look: one look a label, one style, and ticks that can be read.

Colours are Okabe and Ito's, told apart by colour-blind readers; markers and dashes differ as well,
so that the figures can be read in grey.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import seaborn as sns
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

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
MAX_LABELS = 3 * len(COLOURS)
STYLE: Any = {
    **sns.axes_style("ticks"),
    **sns.plotting_context("paper"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Look:
    """How one label is drawn: no two labels of a figure share colour and marker, or dash.

    Attributes
    ----------
    colour, marker : str
        As matplotlib takes them.
    dash : str or tuple
        ``""`` for a solid line, or lengths of dashes and gaps in line widths.
    """

    colour: str
    marker: str
    dash: Any

    @property
    def line(self) -> dict[str, Any]:
        """Settings of a line without markers, for ``Axes.plot``."""
        style = {"dashes": self.dash} if self.dash else {"linestyle": "-"}
        return {"color": self.colour, "linewidth": 1.4, **style}

    @property
    def points(self) -> dict[str, Any]:
        """Settings of markers without a line, for ``Axes.plot``."""
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.5}
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": 5.5,
            "linestyle": "none",
            **edge,
        }

    @property
    def both(self) -> dict[str, Any]:
        """Settings of a line with markers, for ``Axes.plot``."""
        return self.points | {"linestyle": "-"} | self.line


def looks(labels: Iterable[Hashable], /) -> dict[Any, Look]:
    """Give each of up to `MAX_LABELS` labels a look of its own.

    The first eight differ in colour, in marker and in dash. After them the colours come again,
    with other markers and other dashes; pairs of marker and dash never repeat, so that lines with
    markers can be told apart in grey.

    Parameters
    ----------
    labels : iterable of hashable
        Distinct labels, in the order of the legend.

    Returns
    -------
    {label: Look}
        In the same order.

    Raises
    ------
    ValueError
        If there are more than `MAX_LABELS` labels, or one comes twice.
    """
    order = list(labels)
    if len(set(order)) < len(order):
        raise ValueError(f"labels {order} repeat; expected each label once")
    if len(order) > MAX_LABELS:
        raise ValueError(
            f"got {len(order)} labels to tell apart; expected at most {MAX_LABELS}: draw a part "
            "of the frame, or group the labels by a column"
        )
    n = len(COLOURS)
    return {
        label: Look(COLOURS[i % n], MARKERS[(i + 3 * (i // n)) % n], DASHES[(i + 5 * (i // n)) % n])
        for i, label in enumerate(order)
    }


def log_ticks(axis: Axis, /) -> None:
    """Choose ticks of a logarithmic axis by the range it shows, so that labels do not collide.

    Call it once the data are drawn. Wide ranges have decades, narrower ones also 3, or 2 and 5,
    times powers of ten, the narrowest round numbers; minor ticks are never labelled.
    """
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low)
    if decades >= 1.8:
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_minor_formatter(NullFormatter())
        if decades > 4:
            axis.set_minor_locator(NullLocator())
        return
    if decades >= 0.6:
        subs = (1, 3) if decades > 1.3 else (1, 2, 5) if decades > 0.8 else (1, 2, 3, 5)
        axis.set_major_locator(LogLocator(subs=subs, numticks=9))
        axis.set_minor_locator(LogLocator(subs=range(1, 10), numticks=30))
    else:
        axis.set_major_locator(MaxNLocator(nbins=4))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
