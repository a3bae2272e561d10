"""Exact moments of any sharing rule's gradient, by enumeration of how rewards can fall.

Credit depends on a group only through its rewards. So each way in which the rewards can fall
(`bandit.compositions`) is put before the rule itself, as a `Group`, and the rule's own `Credit`
is read off: no formula of any rule is repeated here. What is left is linear algebra over arms.
Source: docs/theory.md, sections 2 and 3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bandit.design import Design, needs_text
from bandit.enumeration import Classes, average
from bandit.moments import Moments, support_gain
from bandit.policies import log_ratio, score_sum, squared_scores
from bandit.probes import Group, Probe, RatioRule
from bandit.probes.group import Array
from bandit.residual import NO_RESIDUAL, Residual
from bandit.worlds import World


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
        Per context, X of them; gradients with respect to K logits.

    Raises
    ------
    ValueError
        If a setting is out of range, or there are more than
        `bandit.compositions.MAX_COMPOSITIONS` compositions; `bandit.sampling.moments` has no
        such bound.

    Notes
    -----
    Contexts with the same set of reward levels share one enumeration; its cost does not depend
    on the number of arms.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers, redraws=redraws)
    parts = [
        _part(world, probe, design, residual, levels, contexts)
        for levels, contexts in _contexts_by_levels(world)
    ]
    shape = world.rewards.shape
    mean, restricted, trace = np.zeros(shape), np.zeros(shape), np.zeros(shape[0])
    for part in parts:
        mean[part.contexts] = part.mean(part.first)
        restricted[part.contexts] = part.mean(part.first_without_success)
        trace[part.contexts] = part.covariance_trace()

    def covariance() -> Array:
        full = np.zeros((*shape, shape[1]))
        for part in parts:
            full[part.contexts] = part.covariance()
        return full

    return Moments(
        mean=mean,
        covariance_trace=trace,
        support_gain=support_gain(world, receiver, restricted),
        true_gradient=world.true_gradient(receiver),
        mean_without_success=restricted,
        probs=world.probs[receiver],
        success=world.success,
        weights=world.weights,
        full_covariance=covariance,
    )


def dead_probability(world: World, /, *, receiver: int = 0, own: int) -> Array:
    """Probability that all own rewards are equal, so that a group gives GRPO no signal.

    ``sum over levels r of P(reward = r)^G``; for binary rewards ``(1-p)^G + p^G``.

    Returns
    -------
    ndarray, shape (X,)
        By context.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=0)
    dead = np.zeros(world.n_contexts)
    for levels, contexts in _contexts_by_levels(world):
        reached = world.rewards[contexts][:, None, :] == levels[:, None]
        mass = np.where(reached, world.probs[receiver][contexts][:, None, :], 0.0).sum(-1)
        dead[contexts] = (mass**design.own).sum(-1)
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
        Probability that the receiver has no success and some peer has one that it can use.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    unaided = np.ones(world.n_contexts)
    for j, count in design.peers:
        usable = world.probs[j] * (1 - residual.drop_table(j, world.rewards.shape))
        unaided *= (1 - np.where(world.success, usable, 0.0).sum(-1)) ** count
    return (1 - world.success_probability[receiver]) ** design.own * (1 - unaided)


def ratio_rule(probe: Probe, /) -> RatioRule | None:
    """Tell how a sharing rule weights peers' rollouts; None if it has no such term."""
    group = Group(own_rewards=[0.0], peer_rewards=[0.0] if probe.needs else None)
    return next(iter(probe.outcomes(group)))[1].peer_ratio


def _contexts_by_levels(world: World, /) -> Iterator[tuple[Array, NDArray[np.int64]]]:
    """Yield each set of reward levels with the contexts that have it."""
    by_levels: dict[tuple[float, ...], list[int]] = {}
    for x, rewards in enumerate(world.rewards):
        by_levels.setdefault(tuple(np.unique(rewards).tolist()), []).append(x)
    for levels, contexts in by_levels.items():
        yield np.array(levels), np.array(contexts)


@dataclass(frozen=True, eq=False)
class _Part:
    """Averages over compositions for contexts (X of them) that share reward levels.

    Given the counts, the estimate's mean is ``sum_f S_f v_f`` with features f: (class of a
    source, route), ``v_f`` the mean score of the class with the route's weight, and ``S_f`` the
    sum of the rule's coefficients over the class. `first` holds ``E[S_f]``, `pairs`
    ``E[S_f S_f']``, and `squares` the mean sum of squared coefficients by class.
    """

    contexts: NDArray[np.int64]
    probs: Array
    arms: Array  # (X, F, K): weight of each arm's score in v_f
    square_arms: Array  # (X, Q, K): the same for squared coefficients
    square_features: NDArray[np.int64]  # (Q, 2): which two features a square belongs to
    first: Array
    first_without_success: Array
    pairs: Array
    squares: Array

    def mean(self, coefficients: Array, /) -> Array:
        return score_sum(np.einsum("xf,xfk->xk", coefficients, self.arms), self.probs)

    def spread(self) -> Array:
        """Weights (X, F, F) on ``v_f v_f'^T`` in the covariance."""
        weights = self.pairs - self.first[:, :, None] * self.first[:, None, :]
        for q, (f, other) in enumerate(self.square_features):
            half = self.squares[:, q] / 2
            weights[:, f, other] -= half
            weights[:, other, f] -= half
        return weights

    def covariance_trace(self) -> Array:
        within = np.einsum("xq,xqk->xk", self.squares, self.square_arms)
        scores = score_sum(self.arms, self.probs[:, None, :])
        trace = (within * squared_scores(self.probs)).sum(-1)
        trace += np.einsum("xfg,xfk,xgk->x", self.spread(), scores, scores, optimize=True)
        return np.maximum(trace, 0.0)  # rounding can leave -1e-18 where nothing varies

    def covariance(self) -> Array:
        within = np.einsum("xq,xqk->xk", self.squares, self.square_arms)
        scores = score_sum(self.arms, self.probs[:, None, :])
        cross = within[:, :, None] * self.probs[:, None, :]
        outer = self.probs[:, :, None] * self.probs[:, None, :]
        full = outer * within.sum(-1)[:, None, None] - cross - cross.swapaxes(1, 2)
        full += within[:, :, None] * np.eye(self.probs.shape[-1])
        return full + np.einsum("xfg,xfk,xgl->xkl", self.spread(), scores, scores, optimize=True)


def _part(
    world: World,
    probe: Probe,
    design: Design,
    residual: Residual,
    levels: Array,
    contexts: NDArray[np.int64],
    /,
) -> _Part:
    """Average over compositions for `contexts`, and tie the averages to arms."""
    rewards, probs = world.rewards[contexts], world.probs[:, contexts]
    text = needs_text(probe)
    own = Classes.of(
        design.receiver, design.own, levels, rewards, probs[design.receiver], None, False
    )
    peers = [
        Classes.of(
            j,
            size,
            levels,
            rewards,
            probs[j],
            residual.drop_table(j, world.rewards.shape)[contexts] if text else None,
            "group_stats" in probe.needs,
        )
        for j, size in (design.peers if probe.needs else ())
    ]
    averages = average(probe, own, peers, world.success_threshold, design.redraws)
    rule = ratio_rule(probe)
    once, weighted, squared = [], [], []
    for classes in peers:
        arms, j = classes.arms, classes.source.policy
        first, second = np.zeros(rewards.shape), np.zeros(rewards.shape)
        if rule is not None:
            ratios = log_ratio(probs[design.receiver], probs[j])
            first, second = residual.weight_moments(rule, ratios, j)
        once.append(arms)
        weighted.append(arms * np.where(arms > 0, first[:, None, :], 0.0))
        squared.append(arms * np.where(arms > 0, second[:, None, :], 0.0))
    n_own, n_peer = own.arms.shape[1], sum(p.arms.shape[1] for p in peers)
    mine, with_ratio = np.arange(n_own), n_own + np.arange(n_peer)
    plain = with_ratio + n_peer
    return _Part(
        contexts,
        probs[design.receiver],
        np.concatenate([own.arms, *weighted, *once], axis=1),
        np.concatenate([own.arms, *squared, *weighted, *once], axis=1),
        np.stack(
            [
                np.concatenate([mine, with_ratio, with_ratio, plain]),
                np.concatenate([mine, with_ratio, plain, plain]),
            ],
            axis=-1,
        ),
        *averages,
    )
