"""From sampled rollouts to a gradient: group, credit, ratio weights, scores.

Source: docs/theory.md, sections 1 and 2.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandit.design import Design, needs_text
from bandit.policies import log_ratio, score_sum
from bandit.probes import Credit, Group, Probe, RatioRule
from bandit.probes.group import Array, Mask
from bandit.residual import Residual
from bandit.rollouts import Arms, Rollouts, Stream, Streams, of_arms
from bandit.worlds import World


def execute(
    probs: Array,
    own_arms: Arms,
    peer_arms: Arms,
    credit: Credit,
    ratio_weights: Array | None = None,
    /,
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
    arm_weights = _by_arm(own_arms, credit.own_weight, probs.shape[-1])
    if ratio_weights is not None:
        on_peers = credit.peer_weight * ratio_weights + credit.nll_weight
        arm_weights += _by_arm(peer_arms, on_peers, probs.shape[-1])
    elif credit.nll_weight.any():
        arm_weights += _by_arm(peer_arms, credit.nll_weight, probs.shape[-1])
    return score_sum(arm_weights, probs)


def estimate(
    world: World,
    probs: Array,
    probe: Probe,
    design: Design,
    residual: Residual,
    rollouts: Rollouts,
    streams: Streams,
    /,
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

    Returns
    -------
    gradient : ndarray, shape (..., X, K)
        With respect to the receiver's logits.
    no_success : ndarray of bool, shape (..., X)
        Groups without an own success.
    """
    who = design.receiver
    seen = design.peers if probe.needs else ()
    arms = rollouts.peers if probe.needs else ()
    none = rollouts.own[..., :0]
    peer_arms = _side_by_side(arms, none)
    group = Group(
        own_rewards=of_arms(world.rewards, rollouts.own),
        peer_rewards=of_arms(world.rewards, peer_arms),
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
            _ratio_weights(credit.peer_ratio, probs, residual, (who, j), drawn, streams)
            for (j, _), drawn in zip(seen, arms, strict=True)
        ]
        weights = _side_by_side(by_peer, none)
    gradient = execute(probs[who], rollouts.own, peer_arms, credit, weights)
    return gradient, np.logical_not(group.own_success.any(-1))


def _side_by_side(parts: Sequence[NDArray[Any]], none: NDArray[Any], /) -> NDArray[Any]:
    """Peers' values (..., M_j) in one array (..., M), laid out as they are; `none` if no peers."""
    # an empty array among the parts would decide the layout of the whole
    return np.concatenate(parts, axis=-1) if parts else none


def _by_arm(arms: Arms, values: Array, n_arms: int, /) -> Array:
    """Sum of the values of the rollouts (..., R) that drew each arm, shape (..., K)."""
    batch = arms.shape[:-1]
    groups = int(np.prod(batch))
    # arms run slowest, as rollouts do in the input: sums over either are sums of long vectors
    cell = arms * groups + np.arange(groups).reshape(*batch, 1)
    flat: NDArray[Any] = np.bincount(_flat(cell), _flat(values), minlength=groups * n_arms)
    return np.moveaxis(flat.reshape(n_arms, *batch), 0, -1)


def _flat(values: NDArray[Any], /) -> NDArray[Any]:
    """Entries (..., X, R) in the order (X, R, ...) in which `draw_arms` lays them out."""
    return np.moveaxis(values, (-2, -1), (0, 1)).ravel()


def _representable(
    world: World,
    residual: Residual,
    receiver: int,
    seen: tuple[tuple[int, int], ...],
    arms: tuple[Arms, ...],
    streams: Streams,
    /,
) -> Mask | np.bool_:
    """Which peer rollouts the receiver can represent; one bit where nothing is ever dropped."""
    tables = [residual.drop_table(j, world.rewards.shape) for j, _ in seen]
    if not any(table.any() for table in tables):
        return np.True_
    return np.concatenate(
        [
            streams.rng(Stream.DROP, receiver, j).random(drawn.shape) >= of_arms(table, drawn)
            for (j, _), table, drawn in zip(seen, tables, arms, strict=True)
        ],
        axis=-1,
    )


def _ratio_weights(
    rule: RatioRule,
    probs: Array,
    residual: Residual,
    pair: tuple[int, int],
    arms: Arms,
    streams: Streams,
    /,
) -> Array:
    """Weights of one peer's rollouts, residual and gate included, shape (..., X, M_j)."""
    receiver, peer = pair
    exact_ratio = of_arms(log_ratio(probs[receiver], probs[peer]), arms)
    delta = residual.draw_delta(peer, arms.shape, streams.rng(Stream.DELTA, receiver, peer))
    passing = residual.draw_canonical(peer, arms.shape, streams.rng(Stream.GATE, receiver, peer))
    return rule.weights(exact_ratio + delta, passing)
