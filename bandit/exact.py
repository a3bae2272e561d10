"""Exact moments of any sharing rule's gradient, by enumeration of how rewards can fall.

Credit depends on a group only through its rewards. So each way in which the rewards can fall
(`bandit.compositions`) is put before the rule itself, as a `Group`, and the rule's own `Credit`
is read off: no formula of any rule is repeated here. What is left is linear algebra over arms.
Source: docs/theory.md, sections 2 and 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bandit.design import Design, check_rule_and_residual
from bandit.events import dead_probability, rescue_distribution, rescue_probability
from bandit.moments import Moments
from bandit.parts import parts_of, ratio_rule
from bandit.parts import ways as ways_of
from bandit.probes import Probe, RatioRule
from bandit.probes.group import Array
from bandit.residual import NO_RESIDUAL, Residual
from bandit.world import World

__all__ = [
    "Bias",
    "bias",
    "dead_probability",
    "moments",
    "ratio_rule",
    "rescue_distribution",
    "rescue_probability",
    "ways",
]


def moments(
    world: World,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
    redraws: int = 0,
) -> Moments:
    """Mean, covariance and support gain of a rule's gradient estimate, exactly.

    For independent rollouts with coefficient ``c_i`` on the score ``s_i``, given the counts::

        E[g]   = sum_i E[c_i s_i]
        Cov[g] = sum_i (E[c_i^2 s_i s_i^T] - E[c_i s_i] E[c_i s_i]^T) + spread of E[g] over counts

    Parameters
    ----------
    world : World
        Contexts, rewards and policies.
    probe : Probe
        The sharing rule; one of your own needs `credit`, and `outcomes` if it draws.
    receiver : int
        The policy that learns.
    own : int
        G, its rollouts for each context.
    peers : int or {policy: int}
        M_j, rollouts seen of every other policy, or of those named.
    residual : Residual
        Tokenizer mismatch of the peers' rollouts.
    redraws : int
        The own group is drawn again while its rewards are all equal, at most this often.

    Returns
    -------
    Moments
        Per context, X of them; gradients with respect to the receiver's D parameters (K logits in a
        tabular world).

    Raises
    ------
    ValueError
        If a setting is out of range, or there are more than
        `bandit.compositions.MAX_COMPOSITIONS` compositions; `bandit.sampling.moments` has no
        such bound.

    Notes
    -----
    Contexts with the same set of reward levels share one enumeration; its cost does not depend
    on the number of arms. For a rule that pools its peers (`Probe.pools_peers`, as all rules here)
    it is polynomial in their number; for others it is a product over peers.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers, redraws=redraws)
    check_rule_and_residual(world, probe, residual)
    parts = list(parts_of(world, probe, design, residual))
    shape = (world.n_contexts, world.n_parameters(receiver))
    mean, restricted, trace = np.zeros(shape), np.zeros(shape), np.zeros(shape[0])
    for part in parts:
        mean[part.contexts] = part.mean(part.averages.first)
        restricted[part.contexts] = part.mean(part.averages.first_without_success)
        trace[part.contexts] = part.covariance_trace()

    def covariance() -> Array:
        full = np.zeros((*shape, shape[1]))
        for part in parts:
            full[part.contexts] = part.covariance()
        return full

    return Moments(
        world=world,
        receiver=receiver,
        mean=mean,
        covariance_trace=trace,
        mean_without_success=restricted,
        full_covariance=covariance,
    )


def ways(
    world: World,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
    redraws: int = 0,
) -> int:
    """How many compositions `moments` goes through, which its time is about proportional to.

    Parameters
    ----------
    world, probe, receiver, own, peers, residual, redraws
        As in `moments`.

    Returns
    -------
    int
        Over all contexts; those that share reward levels, and are held at once, count once.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers, redraws=redraws)
    check_rule_and_residual(world, probe, residual)
    return ways_of(world, probe, design, residual)


@dataclass(frozen=True, eq=False)
class Bias:
    """Where ``E[g] - g*`` of a rule with a ratio term comes from; the parts add up to `total`.

    Attributes
    ----------
    total : ndarray, shape (X, D)
        ``E[g] - g*``.
    normalisation : ndarray, shape (X, D)
        What baseline and scale do: the difference that is left when peers' rollouts stand for the
        receiver's own without loss, ``(kappa - 1) g*`` with binary rewards.
    missing_support : ndarray, shape (X, D)
        Arms of the receiver that a peer never plays, or whose texts it loses more often than those
        of other arms with the same reward.
    residual : ndarray, shape (X, D)
        The error delta of the log-ratio, and the gate.
    truncation : ndarray, shape (X, D)
        The cap; for ``ratio="none"``, weight 1 in place of the ratio.
    """

    total: Array
    normalisation: Array
    missing_support: Array
    residual: Array
    truncation: Array


def bias(
    world: World,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
) -> Bias:
    """Decompose the bias of a rule that weights peers' rollouts by a ratio (PRP).

    The mean gradient is linear in the mean weights ``E[w | arm]``, given how rewards fall. So the
    weights are put in one after another: ideal ones, under which a peer's rollouts of a reward
    level stand for the receiver's own of that level; exact ratios on what the peer can send; with
    the residual; with the cap. Each part is the difference that one replacement makes. Other orders
    would divide the same total otherwise.

    Parameters
    ----------
    world, probe, receiver, own, peers, residual
        As in `moments`.

    Returns
    -------
    Bias
        Per context, in the receiver's D parameters.

    Raises
    ------
    ValueError
        If the rule has no ratio term, or as in `moments`.

    Notes
    -----
    Source: docs/theory.md, section 2 (PRP).
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    check_rule_and_residual(world, probe, residual)
    rule = ratio_rule(probe)
    if rule is None:
        raise ValueError(
            f"{probe.kind} weights no rollout by a ratio; expected a rule with a ratio term, "
            "such as PRP"
        )
    uncapped = RatioRule(rule.kind, gated=rule.gated)
    exactly = RatioRule(gated=False)
    stages = np.zeros((4, world.n_contexts, world.n_parameters(receiver)))
    for part in parts_of(world, probe, design, residual):
        first = part.averages.first
        stages[0, part.contexts] = part.mean(first, part.ideal_arms())
        for stage, (each, noise) in enumerate(
            [(exactly, NO_RESIDUAL), (uncapped, residual), (rule, residual)], start=1
        ):
            if rule.kind == "none" and stage == 2:  # no ratio is computed, so nothing disturbs it
                each, noise = exactly, NO_RESIDUAL
            stages[stage, part.contexts] = part.mean(first, part.weighted_arms(each, noise)[0])
    true = world.true_gradient(receiver)
    ideal, sendable, disturbed, final = stages
    return Bias(
        total=final - true,
        normalisation=ideal - true,
        missing_support=sendable - ideal,
        residual=disturbed - sendable,
        truncation=final - disturbed,
    )
