"""What can happen to a group: that it is dead, that it is rescued, and what a rescue teaches.

Source: docs/theory.md, section 2.
"""

from collections.abc import Mapping

import numpy as np

from bandit.compositions import distribution
from bandit.design import Design
from bandit.probes.group import Array
from bandit.residual import NO_RESIDUAL, Residual
from bandit.world import World


def dead_probability(world: World, /, *, receiver: int = 0, own: int) -> Array:
    """Probability that all own rewards are equal, so that a group gives GRPO no signal.

    ``sum over levels r of P(reward = r)^G``; for binary rewards ``(1-p)^G + p^G``.

    Returns
    -------
    ndarray, shape (X,)
        By context.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=0)
    levels = np.unique(world.rewards)
    mass = np.einsum("xlk,xk->xl", world.verdict_table(levels), world.probs[receiver])
    dead: Array = (mass**design.own).sum(-1)
    return dead


def rescue_probability(
    world: World,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
) -> Array:
    """``rho = (1-p)^G (1 - prod_j (1 - q_j)^M_j)``, q_j counting representable successes.

    Returns
    -------
    ndarray, shape (X,)
        Probability that the receiver has no success and some peer has one that it can use. Both
        are what the verifier calls a success.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    unaided = np.ones(world.n_contexts)
    for (_, count), usable in zip(design.peers, _usable(world, design, residual), strict=True):
        unaided *= (1 - usable.sum(-1)) ** count
    return (1 - world.verdict_probability[receiver]) ** design.own * (1 - unaided)


def rescue_distribution(
    world: World,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
) -> Array:
    """Which arm a rescue teaches: ``mu+ = sum_j E[c_j/C given C >= 1] pi_j(. given success)``.

    Its sum over truly successful arms is the share of rescues that teach a right answer, which is 1
    unless the verifier errs.

    Returns
    -------
    ndarray, shape (X, K)
        Sums to 1; NaN where no peer can rescue.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    usable = _usable(world, design, residual)
    total = np.zeros(world.rewards.shape)
    sizes = [count for _, count in design.peers]
    chance = np.array([arms.sum(-1) for arms in usable]).T[..., None]  # (X, J, 1)
    chance = np.concatenate([chance, 1 - chance], axis=-1) if design.peers else chance
    for j, arms in enumerate(usable):
        left = [count - (i == j) for i, count in enumerate(sizes)]
        others = distribution(chance, left)  # of C - 1, given that one rollout of j is a success
        picked = others @ (1 / np.arange(1, others.shape[1] + 1))
        total += sizes[j] * picked[:, None] * arms
    mass = total.sum(-1, keepdims=True)
    return np.divide(total, mass, out=np.full_like(total, np.nan), where=mass > 0)


def _usable(world: World, design: Design, residual: Residual, /) -> list[Array]:
    """Probability (X, K), by peer, that a rollout is of an arm, called a success and usable."""
    kept = [1 - residual.drop_table(j, world.rewards.shape) for j, _ in design.peers]
    sources = [world.probs[j] for j, _ in design.peers]
    return [a * b * world.called_success for a, b in zip(sources, kept, strict=True)]
