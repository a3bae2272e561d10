"""Learning curves of all rules where contexts share parameters, so that skills can be lost.

Source: docs/theory.md, section 6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bandit import World, dynamics
from bandit.plots import STYLE, looks, mean_lines
from bandit.probes import PRP, Probe, UngatedNLL
from bandit.worlds import shared_representation
from paper_figures import RULES, common_legend

COLUMNS = {
    "own_value": "own skill (value)",
    "rescue_value": "peer's skill (value)",
    "collapsed": "collapsed runs (share)",
}
SKILLS = ("own_value", "rescue_value")


def _rules() -> dict[str, Probe]:
    return {**RULES, "PRP, cap 2": PRP(cap=2.0), "NLL, no gate": UngatedNLL(weight=0.1)}


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    worlds, replicas : int
        Random worlds, and independent runs in each.
    contexts, arms, features : int
        Size of a world, see `bandit.worlds.shared_representation`.
    steps : int
        Updates.
    lr : float
        Step size of plain steps.
    collapse : float
        A run has collapsed once its value is this much below its best.
    own, peers : int
        Group sizes G and M.
    rules : {label: Probe}
        Sharing rules and controls.
    """

    worlds: int = 4
    replicas: int = 12
    contexts: int = 6
    arms: int = 12
    features: int = 24
    steps: int = 100
    lr: float = 20.0
    collapse: float = 0.2
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=_rules)


SWEEP = Sweep()


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Learning curves of both policies, learning from each other, under every rule.

    Returns
    -------
    DataFrame
        As `bandit.dynamics.run` returns it (``replica`` counts through all worlds), with
        ``label``, ``collapse`` and ``own_value``, the value over contexts outside the rescue set.
    """
    frames = []
    for seed in range(sweep.worlds):
        world = shared_representation(
            contexts=sweep.contexts, arms=sweep.arms, features=sweep.features, seed=seed
        )
        for label, rule in sweep.rules.items():
            runs = dynamics.run(
                world,
                rule,
                steps=sweep.steps,
                lr=sweep.lr,
                own=sweep.own,
                peers=sweep.peers,
                replicas=sweep.replicas,
                seed=seed,
                collapse=sweep.collapse,
            )
            runs["own_value"] = _outside_rescue(world, runs)
            runs["replica"] += seed * sweep.replicas
            frames.append(runs.assign(label=label, collapse=sweep.collapse))
    return pd.concat(frames, ignore_index=True)


def _outside_rescue(world: World, runs: pd.DataFrame, /) -> pd.Series:
    """Value over the contexts that are not in a policy's rescue set."""
    start = world.success_probability
    able = (start > dynamics.RESCUE_ABOVE).any(0)
    share = ((start < dynamics.RESCUE_BELOW) & able) @ world.weights
    part = runs["policy"].map(dict(enumerate(share)))
    rest = runs["value"] - part * runs["rescue_value"].fillna(0.0)
    return rest / (1 - part)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw own skill, rescued skill and collapse against the step.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Means over policies, worlds and runs, with 95% intervals over runs.
    """
    look = looks(dict.fromkeys(frame["label"]))
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 3.2), layout="constrained")
        panels = figure.subplots(1, len(COLUMNS))
        shown = frame.assign(collapsed=frame["collapsed"].astype(float))
        for axes, (column, name) in zip(panels, COLUMNS.items(), strict=True):
            mean_lines(axes, shown, look, y=column, by="label", marks=5)
            axes.set_xlabel("step")
            axes.set_title(name)
        common_legend(figure, panels[0], ncols=4)
    return figure


def outcome(frame: pd.DataFrame, column: str, label: str, /) -> tuple[float, float, float]:
    """Mean of a column at the last step, and the bounds of its 95% interval over runs."""
    last = frame[(frame["step"] == frame["step"].max()) & (frame["label"] == label)]
    runs = last.groupby("replica")[column].mean().to_numpy(dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(runs), size=(2000, len(runs)))
    low, high = np.quantile(runs[drawn].mean(-1), [0.025, 0.975])
    return float(runs.mean()), float(low), float(high)


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.
    """

    def told(column: str, label: str) -> str:
        mean, low, high = outcome(frame, column, label)
        return f"{mean:.2f} [{low:.2f}, {high:.2f}]"

    labels = list(dict.fromkeys(frame["label"]))
    start = frame[frame["step"] == 0][["own_value", "rescue_value"]].mean()
    lines = "; ".join(
        f"{label}: {told('own_value', label)}, {told('rescue_value', label)}, "
        f"{told('collapsed', label)}"
        for label in labels
    )
    worst = max(labels, key=lambda label: outcome(frame, "collapsed", label)[0])
    fallen = outcome(frame, "collapsed", worst)[0]
    collapse = f"{worst} collapses most often." if fallen > 0 else "No run of any rule collapses."
    last = frame["step"].max()
    both = max(labels, key=lambda label: sum(outcome(frame, c, label)[0] for c in SKILLS))
    return (
        f"Two policies whose contexts share parameters, each skilled in one half of them, learn "
        f"from each other ({frame['replica'].nunique()} runs). From own skill "
        f"{start['own_value']:.2f} and {start['rescue_value']:.2f} where only the peer was "
        f"skilled, after {last} steps (own skill; peer's skill; share of runs that fell "
        f"{frame['collapse'].iloc[0]:g} below their best, with 95% intervals) {lines}. {collapse} "
        f"The most of both skills together is found under {both}."
    )
