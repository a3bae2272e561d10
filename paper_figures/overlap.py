"""What becomes of different skills as policies share: they end up alike.

Source: docs/theory.md, section 6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from bandit import dynamics
from bandit.plots import STYLE, looks, mean_lines
from bandit.probes import Probe
from bandit.worlds import specialists
from paper_figures import RULES, common_legend

COLUMNS = {"value": "value", "overlap": "overlap of solved sets", "entropy": "entropy (nats)"}


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    policies, contexts_each : int
        Specialists, and contexts that each has mastered.
    weak : float
        Success probability on the others' contexts.
    steps, replicas : int
        Updates and independent runs.
    lr : float
        Step size of plain steps.
    own, peers : int
        Group sizes G and M_j.
    rules : {label: Probe}
        The sharing rules.
    """

    policies: int = 3
    contexts_each: int = 2
    weak: float = 0.002
    steps: int = 120
    replicas: int = 32
    lr: float = 5.0
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=lambda: RULES)


SWEEP = Sweep()


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Learning curves of specialists under every rule, all policies learning from each other.

    Returns
    -------
    DataFrame
        As `bandit.dynamics.run` returns it, with column ``label``.
    """
    world = specialists(policies=sweep.policies, contexts_each=sweep.contexts_each, weak=sweep.weak)
    frames = [
        dynamics.run(
            world,
            rule,
            steps=sweep.steps,
            lr=sweep.lr,
            own=sweep.own,
            peers=sweep.peers,
            replicas=sweep.replicas,
        ).assign(label=label)
        for label, rule in sweep.rules.items()
    ]
    return pd.concat(frames, ignore_index=True)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw value, overlap of solved sets and entropy against the step.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Means over policies and runs, with 95% intervals over runs.
    """
    look = looks(dict.fromkeys(frame["label"]))
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 2.9), layout="constrained")
        panels = figure.subplots(1, len(COLUMNS))
        for axes, (column, name) in zip(panels, COLUMNS.items(), strict=True):
            mean_lines(axes, frame, look, y=column, by="label", marks=6)
            axes.set(xlabel="step", title=name)
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        common_legend(figure, panels[0], ncols=5)
    return figure


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.
    """
    columns = ["value", "overlap", "entropy"]
    last = frame[frame["step"] == frame["step"].max()]
    end = last.groupby("label", sort=False)[columns].mean()
    start = frame[frame["step"] == 0][columns].mean()
    order = end.sort_values("overlap")
    told = "; ".join(
        f"{label}: {row['value']:.2f}, {row['overlap']:.2f}, {row['entropy']:.2f}"
        for label, row in order.iterrows()
    )
    closest = order.index[-1]
    return (
        f"Policies with a skill each ({last['policy'].nunique()} of them, means of "
        f"{last['replica'].nunique()} runs). At the start value, overlap of solved sets and "
        f"entropy are {start['value']:.2f}, {start['overlap']:.2f} and {start['entropy']:.2f}; "
        f"after {last['step'].iloc[0]} steps {told}. The most alike in the end are the policies "
        f"under {closest}: overlap {order.loc[closest, 'overlap']:.2f} with "
        f"{order.loc[closest, 'entropy']:.2f} nats left, against "
        f"{order.loc['GRPO', 'overlap']:.2f} and {order.loc['GRPO', 'entropy']:.2f} under GRPO, "
        f"which shares nothing."
    )
