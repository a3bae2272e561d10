"""Laws that a rule declares, or that a caller asks for, about the credit of single groups."""

from dataclasses import replace

import numpy as np

from bandit.probes import GRPO, Probe
from bandit.probes.advantage import Population
from bandit.testing.examples import Example, select
from bandit.testing.law import differing, mean_weights, prefixed, weights_differ


def statistics_suffice(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """A rule that needs only reward statistics gives the same from them as from rewards."""
    group = example.group
    rows = [
        Population.of(group.peer_rewards[..., own], group.peer_valid[..., own])
        for own in (group.peer_source == j for j in np.unique(group.peer_source))
    ]
    table = np.array([[float(value) for value in row] for row in rows]).reshape(-1, 5)
    sent = replace(
        group,
        peer_rewards=None,
        peer_source=None,
        peer_valid=None,
        peer_representable=None,
        peer_stats=np.where(np.isfinite(table), table, 0.0),
    )
    return differing("own weight", mean_weights(probe, sent).own, mean_weights(probe, group).own)


def source_is_immaterial(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Which peer a rollout came from does not matter: only the pool of all peers' does."""
    group = example.group
    known = np.unique(group.peer_source)
    dealt = replace(group, peer_source=rng.choice(known, group.peer_source.shape))
    found = weights_differ(mean_weights(probe, dealt), mean_weights(probe, group))
    return prefixed(found, f"rollouts said to be of peers {dealt.peer_source.tolist()}")


def shift_and_scale(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """A constant added to rewards and threshold changes nothing, nor does a factor if scaled."""
    group = example.group
    factor = float(rng.uniform(0.2, 5.0)) if probe.scale == "std" else 1.0
    exactly = replace(probe, eps=0.0) if probe.scale == "std" else probe
    # halves are exact in binary: equal rewards stay equal
    shift = float(rng.integers(-8, 9)) / 2
    moved = replace(
        group,
        own_rewards=factor * group.own_rewards + shift,
        peer_rewards=factor * group.peer_rewards + shift,
        success_threshold=factor * group.success_threshold + shift,
    )
    for name, got, expected in zip(
        ("own weight", "peer weight", "likelihood weight"),
        mean_weights(exactly, moved),
        mean_weights(exactly, group),
        strict=True,
    ):
        found = differing(name, got, expected, rtol=1e-7)
        if found is not None:
            return f"with rewards times {factor:.4g} plus {shift:g}: {found}"
    return None


def own_scores_only(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Peers' rollouts have no weight: the gradient stays in the span of the receiver's scores."""
    for _, credit in probe.outcomes(example.group):
        for name in ("peer_advantage", "nll_weight"):
            values = np.asarray(getattr(credit, name))
            if values.any():
                return f"{name} is {values.tolist()}; expected zeros"
    return None


def bounded_extra(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Beyond GRPO there is only likelihood, by at most the rule's `weight` in all."""
    group, weight = example.group, float(getattr(probe, "weight", np.nan))
    if np.isnan(weight):
        return "the rule has no setting `weight` that could bound it"
    plain = GRPO(scale=probe.scale, ddof=probe.ddof, eps=probe.eps).credit(group)
    for _, credit in probe.outcomes(group):
        found = differing("own weight", credit.own_weight, plain.own_weight)
        if found is not None:
            return f"against GRPO: {found}"
        if np.any(credit.peer_advantage):
            return f"peer_advantage is {credit.peer_advantage.tolist()}; expected zeros"
        total = float(np.abs(credit.nll_weight).sum())
        if total > weight * (1 + 1e-12):
            return f"likelihood weights add up to {total!r}; expected at most weight={weight!r}"
    return None


def grpo_without_peers(probe: Probe, example: Example, rng: np.random.Generator, /) -> str | None:
    """Without peers the rule is GRPO with the same scale."""
    alone = select(example.group, peer=np.zeros(0, np.intp))
    plain = GRPO(scale=probe.scale, ddof=probe.ddof, eps=probe.eps)
    return weights_differ(mean_weights(probe, alone), mean_weights(plain, alone))
