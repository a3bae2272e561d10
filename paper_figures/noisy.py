"""A verifier that passes wrong answers: what SGT then learns from its peers.

Source: docs/theory.md, sections 2 (SGT) and 6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bandit import World, dynamics, exact
from bandit.plots import STYLE, looks
from bandit.probes import SGT, Probe, UngatedNLL
from paper_figures import RULES


def _rules() -> dict[str, Probe]:
    return {
        "GRPO": RULES["GRPO"],
        "SGT": RULES["SGT"],
        "PRP, no ratio": RULES["PRP, no ratio"],
        "NLL, no gate": UngatedNLL(weight=0.1),
    }


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    false_positive : tuple of float
        Probabilities that a wrong answer passes.
    peer_success : tuple of float
        q, the peer's true success probability.
    success : float
        p, the receiver's.
    weak, hard : float
        Success probabilities in the learning curves' world, see `two_skills_and_neither`.
    steps, replicas, lr
        Of the learning curves: updates, independent runs, step size.
    own, peers : int
        Group sizes G and M.
    rules : {label: Probe}
        Rules that learn.
    """

    false_positive: tuple[float, ...] = (0.0, 0.01, 0.03, 0.1, 0.2, 0.4)
    peer_success: tuple[float, ...] = (0.8, 0.2, 0.02)
    success: float = 1e-3
    weak: float = 0.005
    hard: float = 0.02
    steps: int = 120
    replicas: int = 20
    lr: float = 5.0
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=_rules)


SWEEP = Sweep()


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact rescues of SGT, and learning curves' ends, by how often wrong answers pass.

    Returns
    -------
    DataFrame
        Rows of ``part`` "rescue" (one for each q and rate): ``rescue_probability`` by verdicts,
        ``true_share`` of rescues that use a true success, ``flow`` of SGT's expected step into
        true success arms where the receiver has no verified success, ``support_gain``. Rows of
        ``part`` "learning" (one for each rule, rate, run): ``value`` after all steps, true
        rewards, mean of all policies.
    """
    frame = pd.concat([_rescues(sweep), _learning(sweep)], ignore_index=True)
    return frame.assign(p=sweep.success, steps=sweep.steps)


def shy_receiver(p: float, q: float, /, *, arms: int = 8) -> World:
    """One context where receiver and peer have the same success arm; wrong answers are uniform."""
    rewards = np.zeros((1, arms))
    rewards[0, 0] = 1.0
    probs = [[[share, *np.full(arms - 1, (1 - share) / (arms - 1))]] for share in (p, q)]
    return World.tabular(probs, rewards)


def two_skills_and_neither(*, weak: float, hard: float, arms: int = 8, each: int = 2) -> World:
    """Two policies with a skill each, and contexts that neither has mastered.

    A policy succeeds with probability 0.8 on its own `each` contexts and `weak` on its peer's. On
    as many more both succeed with probability `hard` and give a wrong answer of their own half
    the time.
    """
    probs = np.empty((2, 3 * each, arms))
    for policy, table in enumerate(probs):
        success = np.repeat([weak, weak, hard], each)
        success[policy * each : (policy + 1) * each] = 0.8
        habit = np.repeat([0.0, 0.0, 0.5], each)
        table[:] = ((1 - success - habit) / (arms - 1 - (habit > 0)))[:, None]
        table[:, 0] = success
        table[habit > 0, 1 + policy] = 0.5
    rewards = np.zeros((3 * each, arms))
    rewards[:, 0] = 1.0
    return World.tabular(probs, rewards)


def _rescues(sweep: Sweep, /) -> pd.DataFrame:
    rows = []
    for q in sweep.peer_success:
        for rate in sweep.false_positive:
            world = shy_receiver(sweep.success, q).noisy(false_positive=rate)
            rescue = exact.rescue_probability(world, own=sweep.own, peers=sweep.peers)
            placed = exact.moments(world, SGT(), own=sweep.own, peers=sweep.peers)
            passing = world.probs[1] * world.called_success
            true = np.where(world.success, passing, 0.0).sum() / passing.sum()
            into = np.where(world.success, placed.mean_without_success, 0.0).sum()
            rows.append(
                {
                    "part": "rescue",
                    "q": q,
                    "false_positive": rate,
                    "rescue_probability": float(rescue[0]),
                    "true_share": float(true),
                    "flow": float(into),
                    "support_gain": float(placed.support_gain[0]),
                }
            )
    return pd.DataFrame(rows)


def _learning(sweep: Sweep, /) -> pd.DataFrame:
    clean = two_skills_and_neither(weak=sweep.weak, hard=sweep.hard)
    frames = []
    for rate in sweep.false_positive:
        world = clean.noisy(false_positive=rate)
        for label, rule in sweep.rules.items():
            runs = dynamics.run(
                world,
                rule,
                steps=sweep.steps,
                lr=sweep.lr,
                own=sweep.own,
                peers=sweep.peers,
                replicas=sweep.replicas,
            )
            last = runs[runs["step"] == sweep.steps]
            value = last.groupby("replica", as_index=False)["value"].mean()
            frames.append(value.assign(part="learning", label=label, false_positive=rate))
    return pd.concat(frames, ignore_index=True)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw true rescues, their gain, and what all rules come to, against the rate of errors.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Three panels; bars are 95% intervals over runs.
    """
    rescue, learning = (frame[frame["part"] == part] for part in ("rescue", "learning"))
    names = {"true_share": "rescues that are right", "support_gain": "SGT: support gain  $U$"}
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 3.1), layout="constrained")
        panels = figure.subplots(1, 3)
        for axes, (column, name) in zip(panels, names.items(), strict=False):
            axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
            for q, look in looks(dict.fromkeys(rescue["q"])).items():
                part = rescue[rescue["q"] == q]
                axes.plot(part["false_positive"], part[column], label=f"q = {q:g}", **look.both)
            axes.set_title(name, fontsize="medium")
        panels[0].legend(frameon=False, loc="lower left", borderaxespad=1.0)
        _outcomes(panels[2], learning)
        rates = np.unique(frame["false_positive"])
        for axes in panels:
            axes.set_xlabel("false positive rate")
            axes.set_xscale("symlog", linthresh=rates[1], linscale=0.6)  # linear from 0 to there
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xticks(
                rates, [f"{rate:g}" if i % 2 == 1 or i == 0 else "" for i, rate in enumerate(rates)]
            )
    return figure


def _outcomes(axes: Axes, learning: pd.DataFrame, /) -> None:
    for label, look in looks(dict.fromkeys(learning["label"])).items():
        ends = final_values(learning, label)
        spread = [ends["mean"] - ends["low"], ends["high"] - ends["mean"]]
        axes.errorbar(ends.index, ends["mean"], spread, label=label, **look.both)
    axes.set_title(f"true value after {learning['steps'].iloc[0]} steps", fontsize="medium")
    axes.legend(frameon=False)


def final_values(frame: pd.DataFrame, label: str, /) -> pd.DataFrame:
    """Mean final value of one rule with its 95% bootstrap interval, by false positive rate."""
    rows = {}
    for rate, part in frame[frame["label"] == label].groupby("false_positive"):
        values = part["value"].to_numpy()
        drawn = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
        low, high = np.quantile(values[drawn].mean(-1), [0.025, 0.975])
        rows[rate] = {"mean": values.mean(), "low": low, "high": high}
    return pd.DataFrame.from_dict(rows, orient="index")


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute` with the labels of `SWEEP`.
    """
    rescue, learning = (frame[frame["part"] == part] for part in ("rescue", "learning"))
    rates = sorted(rescue["false_positive"].unique())
    table = rescue.set_index(["q", "false_positive"])
    shares = "; ".join(
        f"q = {q:g}: {table.loc[(q, rates[1]), 'true_share']:.2g} of the rescues at a rate of "
        f"{rates[1]:g}, {table.loc[(q, rates[-1]), 'true_share']:.2g} at {rates[-1]:g}"
        for q in dict.fromkeys(rescue["q"])
    )
    best = rescue["q"].max()
    gains, flows, events = (
        [table.loc[(best, rate), column] for rate in (rates[0], rates[-1])]
        for column in ("support_gain", "flow", "rescue_probability")
    )
    least = rescue.sort_values("support_gain").iloc[0]

    def ends(label: str) -> str:
        values = final_values(learning, label)
        return "{} {:.2f} [{:.2f}, {:.2f}] and {:.2f} [{:.2f}, {:.2f}]".format(
            label, *values.loc[rates[0]], *values.loc[rates[-1]]
        )

    return (
        f"SGT under a verifier that passes wrong answers (exact; receiver p = "
        f"{frame['p'].iloc[0]:g}). Rescues that use a true success: {shares}. With q = {best:g} "
        f"the support gain goes from {gains[0]:.2g} without errors to {gains[1]:.2g} at a rate of "
        f"{rates[-1]:g} and the flow into the true success from {flows[0]:.2g} to {flows[1]:.2g}, "
        f"as own wrong answers that pass close the gate: a rescue has probability {events[0]:.2g} "
        f"and {events[1]:.2g}. The least gain is {least['support_gain']:.2g}, at "
        f"q = {least['q']:g} and rate {least['false_positive']:g}. Right: two policies with a "
        f"skill each and contexts that "
        f"neither has mastered; true value after {frame['steps'].iloc[0]} steps without errors "
        f"and at a rate of {rates[-1]:g}, with 95% intervals: "
        f"{'; '.join(ends(label) for label in dict.fromkeys(learning['label']))}."
    )
