"""The timeline of a plan, in the style of `bandit.plots`."""

from collections.abc import Sequence
from itertools import groupby

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bandit.plots import COLOURS, STYLE
from mrl.allocation.placement import Placement, Slice

MOST_SLICES = 40  # rows that can be read
MOST_NAMED = 12  # policies in the legend
NARROW = 0.07  # bars below this share of the round have no room for a name


def timeline(placement: Placement, /) -> Figure:
    """Draw a round: a row a slice, a bar for each policy's turn, and where all wait.

    Parameters
    ----------
    placement : Placement
        Of more than 40 slices only the busiest are drawn, and how many are left out is said.

    Returns
    -------
    Figure
    """
    busiest = sorted(placement.slices, key=placement.idle)[:MOST_SLICES]
    shown = [part for part in placement.slices if part in busiest]
    names = [demand.name for demand in placement.demands]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(7.2, 1.3 + 0.34 * max(len(shown), 2)), layout="constrained")
        axes = figure.subplots()
        for row, part in enumerate(shown):
            _turns(axes, row, part, placement, colours)
        barrier = placement.generation_seconds
        axes.axvline(barrier, color="black", linewidth=0.9, linestyle="--")
        axes.annotate(
            "all have published",
            (barrier, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="x-small",
        )
        axes.set_yticks(range(len(shown)), [where(part) for part in shown], fontsize="x-small")
        axes.set(xlim=(0, placement.round_seconds), xlabel="seconds", ylim=(len(shown) - 0.5, -0.5))
        if left_out := len(placement.slices) - len(shown):
            axes.set_ylabel(f"the {len(shown)} busiest of {len(shown) + left_out} slices")
        _legend(figure, names, colours)
    return figure


def where(part: Slice, /) -> str:
    """Where a slice is: its devices by node, as in ``node-0: 0-3``."""
    by_node = groupby(sorted(part.devices), key=lambda device: device.node)
    spans = [(node, _spans([device.number for device in devices])) for node, devices in by_node]
    text = ", ".join(f"{node}: {span}" for node, span in spans[:2])
    return text if len(spans) <= 2 else f"{text} and {len(spans) - 2} more nodes"


def _spans(numbers: Sequence[int], /) -> str:
    """Sorted numbers as spans: ``0-3,5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ",".join(f"{s[0]}-{s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)


def _turns(
    axes: Axes, row: int, part: Slice, placement: Placement, colours: dict[str, str], /
) -> None:
    """Bars of one slice: generation from the start of the round, training from the barrier."""
    demands = {demand.name: demand for demand in placement.demands}
    count, total = len(part.devices), placement.round_seconds
    for phase, start, hatch in (
        ("generation", 0.0, None),
        ("training", placement.generation_seconds, "////"),
    ):
        for name in getattr(part, phase):
            seconds = getattr(demands[name], phase).seconds(part.kind, count)
            axes.barh(
                row,
                seconds,
                left=start,
                height=0.66,
                color=colours[name] if hatch is None else "white",
                edgecolor=colours[name],
                hatch=hatch,
                linewidth=0.9,
            )
            if hatch is None and seconds > NARROW * total:
                axes.text(
                    start + seconds / 2,
                    row,
                    name,
                    ha="center",
                    va="center",
                    color="white",
                    fontsize="x-small",
                    clip_on=True,
                )
            start += seconds


def _legend(figure: Figure, names: Sequence[str], colours: dict[str, str], /) -> None:
    handles = [Patch(color=colours[name], label=name) for name in names[:MOST_NAMED]]
    handles += [
        Patch(facecolor="0.5", edgecolor="0.5", label="generates"),
        Patch(facecolor="white", edgecolor="0.5", hatch="////", label="trains"),
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize="x-small"
    )
