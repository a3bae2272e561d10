"""Figures from the frames of `mrl.gate.tokenised.study`; no figure sets a theme outside itself."""

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from bandit.plots import COLOURS, DASHES, STYLE

NAMES = {
    "mean_weight": "mean weight",
    "ess": "effective share of rollouts",
    "bias_cosine": "cosine to the true gradient",
    "max_bytes": "longest response in bytes",
    "canonical_share": "canonical share",
    "spread": "spread of the logits in nats",
}


def sweep(frame: pd.DataFrame, parameter: str, /, *, title: str | None = None) -> Figure:
    """Draw mean weight, effective sample size and bias of each ratio rule against one setting.

    Parameters
    ----------
    frame : DataFrame
        As `study.sweep` returns it.
    parameter : str
        The column that was varied.
    title : str, optional
        Above the panels.

    Returns
    -------
    Figure
        Means over seeds, with their whole range.

    Raises
    ------
    ValueError
        If a column is missing.
    """
    panels = ("mean_weight", "ess", "bias_cosine")
    missing = [name for name in (parameter, "label", *panels) if name not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks columns {missing}; it has {list(frame.columns)}")
    labels = list(frame["label"].unique())
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(9.0, 3.2), layout="constrained")
        for axes, y in zip(figure.subplots(1, len(panels)), panels, strict=True):
            sns.lineplot(
                frame,
                x=parameter,
                y=y,
                hue="label",
                style="label",
                palette=dict(zip(labels, COLOURS, strict=False)),
                dashes=dict(zip(labels, DASHES, strict=False)),
                errorbar=("pi", 100),
                ax=axes,
                legend="full" if y == panels[-1] else False,
            )
            axes.set(xlabel=NAMES.get(parameter, parameter), ylabel=NAMES[y])
            if y == "mean_weight":
                axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
            if y == "ess":
                axes.set_yscale("log")
        axes.legend(title=None, bbox_to_anchor=(1.02, 1.0), loc="upper left", frameon=False)
        figure.suptitle(title or "")
    return figure


def residual(frame: pd.DataFrame, /, *, title: str | None = None) -> Figure:
    """Draw the distribution of the log-ratio's error over a source's rollouts.

    Parameters
    ----------
    frame : DataFrame
        As `study.rollouts` returns it.
    title : str, optional
        Above the axes.

    Returns
    -------
    Figure
        Histogram weighted by probability, on a log scale; refused rollouts have no error and are
        left out.

    Raises
    ------
    ValueError
        If a column is missing.
    """
    missing = [n for n in ("residual", "probability", "canonical") if n not in frame.columns]
    if missing:
        raise ValueError(f"the frame lacks columns {missing}; it has {list(frame.columns)}")
    drawn = frame.dropna(subset=["residual"]).assign(
        tokens=lambda rows: rows["canonical"].map({True: "canonical", False: "other"})
    )
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(5.4, 3.2), layout="constrained")
        axes = figure.subplots()
        sns.histplot(
            drawn,
            x="residual",
            weights="probability",
            hue="tokens",
            hue_order=["canonical", "other"],
            palette=list(COLOURS[:2]),
            multiple="layer",
            bins=40,
            ax=axes,
        )
        axes.set(yscale="log", xlabel="error of the log-ratio in nats", ylabel="share of rollouts")
        axes.set_title(title or "")
    return figure
