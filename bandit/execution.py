"""From sampled rollouts to a gradient: group, credit, ratio weights, scores.

Source: docs/theory.md, sections 1 and 2.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandit.design import Design, needs_text
from bandit.policies import log_ratio, pull_back
from bandit.probes import Credit, Group, Probe, RatioRule
from bandit.probes.group import Array, Mask
from bandit.residual import Residual
from bandit.rollouts import Arms, Rollouts, Stream, Streams, memory_order, of_arms
from bandit.world import World


def execute(
    probs: Array,
    own_arms: Arms,
    peer_arms: Arms,
    credit: Credit,
    ratio_weights: Array | None = None,
    /,
    *,
    out: Array | None = None,
) -> Array:
    """Form the gradient that a credit stands for: all of the theory executes credit here.

    ``1/n_pg [sum_own A s + sum_peer w A s] + sum_peer nll_weight s`` with exact scores
    ``s(y) = e_y - pi``.

    Parameters
    ----------
    probs : ndarray, shape (X, K) or (..., X, K)
        The receiver's policy.
    own_arms : ndarray of int, shape (..., X, G)
        Its rollouts.
    peer_arms : ndarray of int, shape (..., X, M)
        The peers' rollouts, in the order of the group that `credit` was given for.
    credit : Credit
        Credit with batch shape (..., X).
    ratio_weights : ndarray, shape (..., X, M), optional
        Weight w of each peer rollout under ``credit.peer_ratio``; needed exactly if that is set.
    out : ndarray, shape (..., X, K), optional
        Where to write the result; contiguous.

    Returns
    -------
    ndarray, shape (..., X, K)
        Gradient with respect to the logits of each context.

    Raises
    ------
    ValueError
        If weights are missing, or given where the credit has no ratio term.
    """
    if (credit.peer_ratio is None) != (ratio_weights is None):
        raise ValueError(
            f"credit.peer_ratio is {credit.peer_ratio} and ratio_weights "
            f"{'are missing' if ratio_weights is None else 'were given'}; expected both or neither"
        )
    terms = [(own_arms, credit.own_weight)]
    if ratio_weights is not None:
        terms.append((peer_arms, credit.peer_weight * ratio_weights + credit.nll_weight))
    elif credit.nll_weight.any():
        terms.append((peer_arms, credit.nll_weight))
    # sum_i c_i (e_y(i) - pi): the dense part first, then one entry for each rollout
    total = sum(weights.sum(-1) for _, weights in terms)
    gradient: Array = np.multiply(np.negative(total)[..., None], probs, out=out, order="C")
    for arms, weights in terms:
        _add_by_arm(gradient, arms, weights)
    return gradient


def estimate(
    world: World,
    probs: Array,
    probe: Probe,
    design: Design,
    residual: Residual,
    rollouts: Rollouts,
    streams: Streams,
    /,
    *,
    out: Array | None = None,
) -> tuple[Array, Mask]:
    """One gradient estimate for each sampled group.

    Parameters
    ----------
    world : World
        Gives the rewards.
    probs : ndarray, shape (N, X, K) or (N, ..., X, K)
        The policies now, which may have moved away from the world's.
    probe, design, residual
        Sharing rule, sizes, and mismatch of the peers' rollouts.
    rollouts : Rollouts
        The sampled arms, batch shape (..., X).
    streams : Streams
        Random numbers for residuals and for the rule's own draws.
    out : ndarray, shape (..., X, D), optional
        Where to write the gradient; contiguous.

    Returns
    -------
    gradient : ndarray, shape (..., X, D)
        With respect to the receiver's parameters.
    no_success : ndarray of bool, shape (..., X)
        Groups without an own success.
    """
    who = design.receiver
    seen = design.peers if probe.needs else ()
    samples = rollouts.peers if probe.needs else ()
    arms = [sample.arms for sample in samples]
    peer_arms = _side_by_side(arms, rollouts.own.arms[..., :0])
    group = Group(
        own_rewards=rollouts.own.rewards,
        peer_rewards=_side_by_side(
            [sample.rewards for sample in samples], rollouts.own.rewards[..., :0]
        ),
        peer_source=design.peer_source if probe.needs else None,
        # one bit broadcast, not an array: masks then follow the layout of the rewards, which
        # makes masked sums several times faster
        own_valid=np.True_,
        peer_valid=np.True_,
        peer_representable=_representable(world, residual, who, seen, arms, streams)
        if needs_text(probe)
        else np.True_,
        success_threshold=world.success_threshold,
    )
    credit = probe.credit(group, streams.rng(Stream.PROBE, who))
    weights = None
    if credit.peer_ratio is not None:
        by_peer = [
            _ratio_weights(credit.peer_ratio, world, probs, residual, (who, j), drawn, streams)
            for (j, _), drawn in zip(seen, arms, strict=True)
        ]
        weights = _side_by_side(by_peer, rollouts.own.rewards[..., :0])
    no_success = np.logical_not(group.own_success.any(-1))
    features = world.features_of(who)
    if features is None:
        return execute(
            probs[who], rollouts.own.arms, peer_arms, credit, weights, out=out
        ), no_success
    gradient = execute(probs[who], rollouts.own.arms, peer_arms, credit, weights)
    return pull_back(gradient, features, out=out), no_success


def _side_by_side(parts: Sequence[NDArray[Any]], none: NDArray[Any], /) -> NDArray[Any]:
    """Peers' values (..., M_j) in one array (..., M), laid out as they are; `none` if no peers."""
    # an empty array among the parts would decide the layout of the whole
    return np.concatenate(parts, axis=-1) if parts else none


def _add_by_arm(gradient: Array, arms: Arms, values: Array, /) -> None:
    """Add the values of rollouts (..., R) to the entries (..., K) of the arms they drew."""
    n_arms = gradient.shape[-1]
    cell = arms + np.arange(0, gradient.size, n_arms).reshape(*gradient.shape[:-1], 1)
    order = memory_order(cell)
    np.add.at(gradient.reshape(-1), cell.transpose(order).ravel(), values.transpose(order).ravel())


def _representable(
    world: World,
    residual: Residual,
    receiver: int,
    seen: tuple[tuple[int, int], ...],
    arms: Sequence[Arms],
    streams: Streams,
    /,
) -> Mask | np.bool_:
    """Which peer rollouts the receiver can represent; one bit where nothing is ever dropped."""
    if not any(residual.drops(j) for j, _ in seen):
        return np.True_
    shape = world.rewards.shape
    kept: Mask = np.concatenate(
        [
            residual.draw_representable(j, drawn, shape, streams.rng(Stream.DROP, receiver, j))
            for (j, _), drawn in zip(seen, arms, strict=True)
        ],
        axis=-1,
    )
    return kept


def _ratio_weights(
    rule: RatioRule,
    world: World,
    probs: Array,
    residual: Residual,
    pair: tuple[int, int],
    arms: Arms,
    streams: Streams,
    /,
) -> Array:
    """Weights of one peer's rollouts, residual and gate included, shape (..., X, M_j)."""
    if rule.kind == "none":
        return np.broadcast_to(1.0, arms.shape)
    receiver, peer = pair
    shape = world.rewards.shape
    mine, its = probs[receiver], probs[peer]
    passing: Mask | np.bool_ = np.True_
    if rule.gated:
        rng = streams.rng(Stream.GATE, receiver, peer)
        passing = residual.draw_canonical(peer, arms, shape, rng)
    delta = residual.draw_delta(peer, arms, shape, streams.rng(Stream.DELTA, receiver, peer))
    if mine.size > arms.size:  # policies of many runs: fewer rollouts than arms
        return rule.weights(log_ratio(of_arms(mine, arms), of_arms(its, arms)) + delta, passing)
    if residual.is_exact(peer):  # a weight is a function of the arm
        weights = of_arms(rule.weights(log_ratio(mine, its)), arms)
        return np.where(passing, weights, 0.0) if rule.gated else weights
    return rule.weights(of_arms(log_ratio(mine, its), arms) + delta, passing)
