"""Figures of the paper: ``python -m paper_figures [NAME...] [-o DIR]``.

A figure is a module with four parts: ``SWEEP``, over which settings; `compute`, a tidy frame;
`plot`, the picture; and `caption`, the claim with the frame's own numbers.
"""

from collections.abc import Mapping
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bandit.probes import GRPO, PRP, SGT, XGRPO, Probe

RULES: Mapping[str, Probe] = MappingProxyType(
    {
        "GRPO": GRPO(),
        "XGRPO": XGRPO(),
        "PRP": PRP(),
        "PRP, no ratio": PRP(ratio="none"),
        "SGT": SGT(),
    }
)


def common_legend(figure: Figure, axes: Axes, /, *, ncols: int) -> None:
    """Put one legend, with the labels of `axes`, below all panels."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=ncols, frameon=False)
