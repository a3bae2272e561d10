"""Rung "dynamics": toy training does not collapse and keeps the promise of support.

All policies of the gate world learn at once, by the run's sharing rules, optimizer kind and
gradient clipping; beside them GRPO and the controls that sharing must beat, on the same random
numbers. Needs no torch. Source: docs/gate.md, docs/theory.md, sections 4 and 6.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bandit import World, dynamics
from bandit.optimizers import OptimizerKind
from bandit.probes import GRPO, Probe
from mrl.config import GroupConfig, PolicyConfig, RunConfig
from mrl.estimates import bootstrap_interval
from mrl.gate.certificate import Check, Rung
from mrl.seeds import derive

Setting = tuple[str, float | None, str]
KINDS: Mapping[str, OptimizerKind] = {"adamw": "adam", "sgd": "sgd"}
PROBE, BASE = "the run's probe", "GRPO"
MORE_OWN, REDRAWN = "GRPO, G+M own", "GRPO, dynamic sampling"
LABELS = (PROBE, BASE, MORE_OWN, REDRAWN)


@dataclass(frozen=True)
class Treatment:
    """What is trained: a sharing rule for each policy, and how many rollouts it gets."""

    probes: tuple[Probe, ...]
    own: int
    redraws: int


def treatments_of(run: RunConfig, group: GroupConfig, /) -> dict[str, Treatment]:
    """The run's rules, GRPO with the same groups, and the controls.

    `group` has the group size and redraws of all policies. The controls spend what sharing spends:
    G + M own rollouts, with M of the policy that sees most, or as many redraws of dead groups as M
    pays for.
    """
    own, redraws = group.own, group.redraws
    probes = tuple(run.probe_of(policy) for policy in run.policies)
    alone = tuple(GRPO(scale=p.scale, ddof=p.ddof, eps=p.eps) for p in probes)
    shared = max(sum(run.peers_of(policy.name).values()) for policy in run.policies)
    return {
        PROBE: Treatment(probes, own, redraws),
        BASE: Treatment(alone, own, redraws),
        MORE_OWN: Treatment(alone, own + shared, redraws),
        REDRAWN: Treatment(alone, own, max(redraws, math.ceil(shared / own))),
    }


def dynamics_rung(
    run: RunConfig, world: World, /, *, advance: Callable[[], None] = lambda: None
) -> Rung:
    """Train all treatments and hold collapse and rescue against the gate's thresholds.

    Parameters
    ----------
    run : RunConfig
        Steps, seeds, learning rate and thresholds in ``run.gate``.
    world : World
        The gate's world.
    advance : callable
        Called as each treatment of `treatments_of` is done.

    Returns
    -------
    Rung
        The share of collapsed runs of every policy; for one whose rule claims support, the gain
        over GRPO on its rescue set, averaged over the steps of toy training and paired by seed.
    """
    frames = {}
    for label in LABELS:
        frames[label] = _train(run, world, label)
        advance()
    checks: list[Check] = []
    figures: dict[str, Any] = {}
    notes: list[str] = []
    sums_of: dict[str, Any] = {
        label: dynamics.summary(frame).to_dict("index") for label, frame in frames.items()
    }
    claims = [run.probe_of(policy).claims_support for policy in run.policies]
    gains = [_gains(frames, i, run.seed) for i in range(len(run.policies))]
    tried = [i for i, gain in enumerate(gains) if claims[i] and not math.isnan(gain[BASE][0])]
    for i, policy in enumerate(run.policies):
        sums = {label: sums_of[label][i] for label in frames}
        share = float(sums[PROBE]["collapse_share"])
        name = f"{policy.name}: collapsed share"
        checks.append(Check.at_most(name, share, run.gate.max_collapse))
        # A policy that is weak nowhere cannot be rescued; one of the claimants must be.
        if i in tried or (claims[i] and not tried):
            name = f"{policy.name}: rescue gain over GRPO"
            checks.append(Check.at_least(name, gains[i][BASE][0], run.gate.min_rescue_gain))
        treatments = {label: _figures(row) for label, row in sums.items()}
        figures[policy.name] = {"treatments": treatments, "gain_over": gains[i]}
        notes.append(_sentence(policy.name, sums[PROBE], gains[i]))
    if any(claims) and not tried:
        notes.append(
            "the rule claims support, and no policy has a rescue set: set gate.success so that "
            f"some policy is below {dynamics.RESCUE_BELOW} where another is above "
            f"{dynamics.RESCUE_ABOVE}"
        )
    return Rung(tuple(checks), figures, (*notes, *_blind_spots(run)))


def _train(run: RunConfig, world: World, label: str, /) -> pd.DataFrame:
    """Toy runs of one treatment, each policy read from runs with its own settings.

    `bandit.dynamics` has one optimizer and one group size for all policies; where the run has
    several, all policies are trained with each of them in turn.
    """
    index = {policy.name: i for i, policy in enumerate(run.policies)}
    frames: dict[Setting, pd.DataFrame] = {}
    parts = []
    for i, policy in enumerate(run.policies):
        key = _setting(run, policy)
        if key not in frames:
            group = run.group_of(policy)
            treatment, peers = treatments_of(run, group)[label], group.peers
            frames[key] = dynamics.run(
                world,
                treatment.probes,
                steps=run.gate.steps,
                lr=run.gate.lr,
                own=treatment.own,
                peers={index[k]: n for k, n in peers.items()} if isinstance(peers, dict) else peers,
                replicas=run.gate.replicas,
                seed=derive(run.seed, "gate", "dynamics"),
                optimizer=KINDS[policy.optimizer.kind],
                max_norm=policy.optimizer.max_grad_norm,
                redraws=treatment.redraws,
            )
        parts.append(frames[key][frames[key]["policy"] == i])
    return pd.concat(parts)


def _setting(run: RunConfig, policy: PolicyConfig, /) -> Setting:
    """What a policy's toy runs depend on besides the run's rules."""
    optimizer = policy.optimizer
    return optimizer.kind, optimizer.max_grad_norm, run.group_of(policy).model_dump_json()


def _gains(
    frames: Mapping[str, pd.DataFrame], policy: int, seed: int, /
) -> dict[str, tuple[float, float, float]]:
    """Mean gain on the rescue set over each other treatment, with its 95% bootstrap interval."""
    means = {label: _while_learning(frame, policy) for label, frame in frames.items()}
    gains = {}
    for label in frames:
        if label == PROBE:
            continue
        gain = means[PROBE] - means[label]
        low, high = (math.nan, math.nan)
        if np.isfinite(gain).all():
            low, high = bootstrap_interval(gain, derive(seed, "gate", "bootstrap"))
        gains[label] = (float(gain.mean()), low, high)
    return gains


def _while_learning(frame: pd.DataFrame, policy: int, /) -> np.ndarray:
    """Value on the rescue set, averaged over the steps of toy training, of each seed.

    The final value alone would depend on when one stops: where GRPO gets there late, it shows
    no gain in the end.
    """
    mine = frame[(frame["policy"] == policy) & (frame["step"] > 0)]
    means = mine.groupby("replica", sort=True)["rescue_value"].mean()
    return means.to_numpy(dtype=np.float64)


def _figures(row: Mapping[str, float], /) -> dict[str, Any]:
    intervals = {
        name: [float(row[name]), float(row[f"{name}_low"]), float(row[f"{name}_high"])]
        for name in ("final_value", "rescue_value", "rescued_share", "collapse_share")
    }
    single = ("time_to_rescue", "entropy", "overlap", "gradient_norm_q0.95")
    return {**intervals, **{name: float(row[name]) for name in single}}


def _sentence(
    policy: str, row: Mapping[str, float], gains: Mapping[str, tuple[float, float, float]], /
) -> str:
    text = f"{policy}: value {row['final_value']:.2f} after toy training"
    if math.isnan(gains[BASE][0]):
        return f"{text}; it has no rescue set"
    over = (
        f"{label} {m:+.2f} [{low:+.2f}, {high:+.2f}]" for label, (m, low, high) in gains.items()
    )
    return f"{text}; mean gain on its rescue set over {'; '.join(over)} (95% intervals over seeds)"


def _blind_spots(run: RunConfig, /) -> list[str]:
    """What toy training does not reproduce of the run."""
    notes = []
    if len({_setting(run, policy) for policy in run.policies}) > 1:
        notes.append(
            "the policies' optimizers or group sizes differ: each was judged in runs where all "
            "have its"
        )
    if any(one.optimizer.kind == "adamw" for one in run.policies):
        notes.append(
            "toy training uses Adam with betas 0.9 and 0.999 and no weight decay, whatever the "
            "run's settings: this rung tells nothing about others"
        )
    return notes
