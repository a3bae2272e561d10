"""Exact moments of a sharing rule in the length world.

As in `bandit.exact`, the rule itself is asked for its credit, composition by composition of the
rewards; what is new are the weighted scores of a class of responses. Source: docs/theory.md,
sections 3 and 7.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bandit.design import Design
from bandit.enumeration import Averages, Classes, average
from bandit.exact import ratio_rule
from bandit.length.weights import TokenMoments, log_right, product, token_moments
from bandit.length.world import LEVELS, LengthWorld
from bandit.moments import cosine
from bandit.policies import score_sum, squared_scores
from bandit.probes import Probe, RatioRule
from bandit.probes.group import Array
from bandit.world import World

PLAIN = RatioRule("none")


@dataclass(frozen=True, eq=False)
class LengthMoments:
    """Moments of one receiver's gradient estimate with respect to its (L, V) logits.

    Attributes
    ----------
    mean, true_gradient : ndarray, shape (L, V)
        ``E[g]`` and ``g*``.
    peer_mean : ndarray, shape (L, V)
        The part of ``E[g]`` that peers' rollouts bring through the policy-gradient term.
    covariance_trace : float
        ``tr Cov(g)``, the stability cost; inf where ``E[w^2]`` overflows.
    support_gain : float
        ``U = <grad log p, E[g; no own success]>``; NaN where p = 0.
    fisher_gain : float
        The same in the Fisher geometry: the flow into right tokens of each position, divided by
        their probability, summed over positions. NaN where p = 0.
    ess : float
        ``(sum_j M_j E w)^2 / sum_j M_j E w^2``; with `block` that of the tokens' weights, divided
        by L. NaN without a ratio term or without peers.
    """

    mean: Array
    true_gradient: Array
    peer_mean: Array
    covariance_trace: float
    support_gain: float
    fisher_gain: float
    ess: float

    @property
    def bias_cosine(self) -> float:
        """``cos(E g, g*)``; NaN where one of them is 0."""
        return float(cosine(self.mean.ravel(), self.true_gradient.ravel()))

    @property
    def peer_cosine(self) -> float:
        """The cosine of the peers' part alone, which own rollouts do not dilute."""
        return float(cosine(self.peer_mean.ravel(), self.true_gradient.ravel()))


def moments(
    world: LengthWorld,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
) -> LengthMoments:
    """Exact moments of a sharing rule's gradient estimate; none of the V^L strings is formed.

    Parameters
    ----------
    world : LengthWorld
        One prompt.
    probe : Probe
        The sharing rule.
    receiver, own, peers
        As in `bandit.exact.moments`.

    Raises
    ------
    ValueError
        If a setting is out of range, there are too many compositions of rewards, or a capped
        ratio has too many values (see `token_moments`).
    """
    outcomes = world.outcomes
    design = Design.of(outcomes, receiver=receiver, own=own, peers=peers)
    shown = design.peers if probe.needs else ()
    averages, rule = _averages(probe, outcomes, design), ratio_rule(probe)
    features = _features(world, [design.receiver, *(j for j, _ in shown)], rule)
    probs, p = world.probs[design.receiver], world.success_probability[design.receiver]
    true = world.true_gradient(design.receiver)

    def mean(coefficients: Array, part: slice) -> Array:
        return score_sum(np.einsum("f,flv->lv", coefficients[part], features.arms[part]), probs)

    everything, ratio_part = slice(None), slice(2, 2 + 2 * len(shown))
    without_success = mean(averages.first_without_success[0], everything)
    gain = fisher = np.nan
    if p > 0:
        flow = np.where(world.right, without_success, 0.0).sum(-1)
        gain = (true * without_success).sum() / p
        fisher = (flow / np.exp(log_right(probs, world.right))).sum()
    return LengthMoments(
        mean=mean(averages.first[0], everything),
        true_gradient=true,
        peer_mean=mean(averages.first[0], ratio_part),
        covariance_trace=_covariance_trace(averages, features, probs),
        support_gain=float(gain),
        fisher_gain=float(fisher),
        ess=_ess([size for _, size in shown], features.weighted)
        if rule is not None and shown
        else np.nan,
    )


def _averages(probe: Probe, outcomes: World, design: Design, /) -> Averages:
    """What the rule answers, over all ways in which failures and successes can fall."""
    verdicts, dropped = outcomes.verdict_table(LEVELS), np.zeros((1, 1, 1))
    own, *peers = (
        Classes.of(
            members,
            LEVELS,
            verdicts,
            np.stack([outcomes.probs[j] for j, _ in members], axis=1),
            dropped,
            False,
        )
        for members in ([(design.receiver, design.own)], *design.pools(probe))
    )
    return average(probe, own, peers, outcomes.success_threshold, design.redraws)


class _Features(NamedTuple):
    """Scores of each class of a source's rollouts, in the order of `bandit.enumeration.Averages`.

    Attributes
    ----------
    arms : ndarray, shape (F, L, V)
        ``E[w 1{y_l = v} | class]``: own classes, peers' with their weight, peers' plainly.
    squares : ndarray, shape (Q, L, V)
        The same for products of coefficients of one rollout.
    weighted : tuple of TokenMoments
        Of each peer, not conditioned.
    """

    arms: Array
    squares: Array
    weighted: tuple[TokenMoments, ...]


def _features(world: LengthWorld, policies: Sequence[int], rule: RatioRule | None, /) -> _Features:
    """Scores of the receiver's classes and of its peers'; `policies` names the receiver first."""
    probs, *peers = (world.probs[j] for j in policies)
    own, *plain = (product(its, world.right) for its in (probs, *peers))
    # without a ratio term the weights have coefficient 0, whatever they are
    kind = PLAIN if rule is None else rule
    weighted = tuple(token_moments(probs, its, world.right, kind) for its in peers)
    first, second = [w.first for w in weighted], [w.second for w in weighted]
    mine, *theirs = (world.outcomes.probs[j, 0] for j in policies)
    return _Features(
        _given([own, *first, *plain], [mine, *theirs, *theirs]),
        _given([own, *second, *first, *plain], [mine, *theirs, *theirs, *theirs]),
        weighted,
    )


def _given(joint: Sequence[Array], mass: Sequence[Array], /) -> Array:
    """Condition moments (2, L, V) on classes of probability (2,); 0 for an empty class."""
    values, chance = np.concatenate(joint), np.concatenate(mass)[:, None, None]
    chance = np.broadcast_to(chance, values.shape)
    return np.divide(values, chance, out=np.zeros_like(values), where=chance > 0)


def _covariance_trace(averages: Averages, features: _Features, probs: Array, /) -> float:
    """``tr Cov(g)`` as in docs/theory.md, section 3; a score is a vector of all positions."""
    first = averages.first[0]
    scores = score_sum(features.arms, probs).reshape(len(first), -1)
    spread = (averages.pairs[0] - np.outer(first, first)) * (scores @ scores.T)
    lengths = _product_sum(features.squares, squared_scores(probs), (1, 2))
    squares = np.concatenate([averages.own_squares[0], averages.peer_squares[0].ravel()])
    # rounding can leave -1e-18 where nothing varies
    return max(float(_product_sum(squares, lengths, 0) + spread.sum()), 0.0)


def _product_sum(a: Array, b: Array, axis: int | tuple[int, ...], /) -> Array:
    """Sum of products in which 0 times inf is 0: what cannot occur has no moment to count."""
    with np.errstate(invalid="ignore"):
        return np.where((a != 0) & (b != 0), a * b, 0.0).sum(axis)


def _ess(sizes: Sequence[int], weighted: Sequence[TokenMoments], /) -> float:
    count, length = np.array(sizes, dtype=np.float64), weighted[0].first.shape[1]
    first = count @ np.array([w.first.sum() for w in weighted])
    second = count @ np.array([w.second.sum() for w in weighted])
    return float(first**2 / (length * second)) if second > 0 else 0.0
