"""Moments of the weight of a response, one token at a time.

Source: docs/theory.md, section 7.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bandit.policies import log_probabilities, log_ratio
from bandit.probes import RatioRule
from bandit.probes.group import Array, Mask

MAX_ATOMS = 200_000
DECIMALS = 12


class TokenMoments(NamedTuple):
    """Moments of a response's weight together with one of its tokens, and with its class.

    Attributes
    ----------
    first : ndarray, shape (2, L, V)
        ``E[w 1{failure or success} 1{y_l = v}]``; with `block` w is the weight of token l.
    second : ndarray, shape (2, L, V)
        The same with ``w^2``; inf where it overflows.
    """

    first: Array
    second: Array


def token_moments(mine: Array, its: Array, right: Mask, rule: RatioRule, /) -> TokenMoments:
    """Moments of the weights of a source's rollouts, by class, position and token.

    With token ratios ``r_l = pi_l(y_l) / pi'_l(y_l)`` the weight is, before the cap, ``prod r_l``
    (``sequence``), ``prod r_l^(1/L)`` (``length_normalised``: a token stands for a byte), ``r_l``
    on the score at position l (``block``: a token is a block), or 1 (``none``).

    Parameters
    ----------
    mine, its : ndarray, shape (L, V)
        Token distributions of the receiver and of the source.
    right : ndarray of bool, shape (L, V)
        Which tokens are right.
    rule : RatioRule
        Kind and cap.

    Raises
    ------
    ValueError
        If the ratio of whole responses is capped and its distribution has more than `MAX_ATOMS`
        values. Without a cap, and with ``block``, there is no such bound.

    Notes
    -----
    A power of the ratio turns the source's distribution into ``pi^e pi'^(1-e)``: unnormalised,
    but again a product over positions. A capped ratio of whole responses is none; there the
    distribution of the log-ratio is formed position by position, equal values merged (to
    `DECIMALS` decimals).
    """
    ratios = log_ratio(mine, its)
    if rule.kind in ("none", "block"):
        joint = product(its, right)
        weights = rule.weights(ratios)
        return TokenMoments(joint * weights, joint * np.square(weights))
    exponent = 1.0 if rule.kind == "sequence" else 1.0 / len(its)
    if np.isinf(rule.cap):
        base = log_probabilities(its)
        return TokenMoments(*(product(np.exp(base + e * exponent * ratios), right) for e in (1, 2)))
    return _capped(its, ratios, right, exponent, rule)


def log_right(probs: Array, right: Mask, /) -> Array:
    """Log-probability of a right token, exact to the last bits where right or wrong is rare.

    Parameters
    ----------
    probs, right : ndarray, shape (..., V)
        Token distributions, and which tokens are right.

    Returns
    -------
    ndarray, shape (...)
        ``-inf`` where no right token is ever played.
    """
    hit, miss = np.where(right, probs, 0.0).sum(-1), np.where(right, 0.0, probs).sum(-1)
    with np.errstate(divide="ignore"):
        return np.where(miss < 0.5, np.log1p(-np.minimum(miss, 0.5)), np.log(hit))


def product(factors: Array, right: Mask, /) -> Array:
    """Sums of ``prod_l u_l(y_l)`` over failures and over successes, by one of their tokens.

    The product is a constant times a product of distributions, under which the class of a response
    is a matter of its other tokens; a difference of two products is never formed.

    Parameters
    ----------
    factors, right : ndarray, shape (L, V)
        ``u_l(v) >= 0``, and which tokens are right.

    Returns
    -------
    ndarray, shape (2, L, V)
        Failures, then successes; inf where it overflows.
    """
    total = factors.sum(-1, keepdims=True)
    tilted = np.divide(factors, total, out=np.zeros_like(factors), where=total > 0)
    each = log_right(tilted, right)
    edge = np.zeros(1)
    before = np.concatenate([edge, np.cumsum(each)[:-1]])
    after = np.concatenate([np.cumsum(each[::-1])[-2::-1], edge])
    others = (before + after)[:, None]  # log-probability that all other tokens are right
    joint = np.stack(
        [
            tilted * np.where(right, -np.expm1(others), 1.0),
            np.where(right, tilted, 0.0) * np.exp(others),
        ]
    )
    with np.errstate(divide="ignore", over="ignore"):
        return np.exp(np.log(joint) + np.log(total).sum())


def _capped(
    its: Array, ratios: Array, right: Mask, exponent: float, rule: RatioRule, /
) -> TokenMoments:
    """`token_moments` where the ratio of a whole response is capped.

    Positions that are alike share their result, so the others' log-ratio is formed once for each.
    """
    alike, index, counts = np.unique(
        np.concatenate([its, ratios, right], axis=-1),
        axis=0,
        return_inverse=True,
        return_counts=True,
    )
    moments = np.zeros((2, len(alike), 2, its.shape[-1]))
    for k, row in enumerate(alike):
        others = np.repeat(np.arange(len(alike)), counts - (np.arange(len(alike)) == k))
        values, wrong, good = _log_ratio_of_all(alike[others])
        prob, ratio, hit = np.split(row, 3)
        weights = rule.weights(exponent * (values[:, None] + ratio))
        for e in (0, 1):
            powers = weights ** (e + 1)
            moments[e, k, 0] = prob * (wrong @ powers + (1 - hit) * (good @ powers))
            moments[e, k, 1] = prob * hit * (good @ powers)
    first, second = moments[:, index.ravel()].swapaxes(1, 2)
    return TokenMoments(first, second)


def _log_ratio_of_all(positions: Array, /) -> tuple[Array, Array, Array]:
    """Values of the summed log-ratio with the mass of failures and of successes at each.

    `positions` has rows of V probabilities, V log-ratios and V marks of right tokens.
    """
    values, wrong, good = np.zeros(1), np.zeros(1), np.ones(1)
    for row in positions:
        prob, ratio, hit = np.split(row, 3)
        drawn = prob > 0
        prob, ratio, hit = prob[drawn], ratio[drawn], hit[drawn]
        keys = np.round((values[:, None] + ratio).ravel(), DECIMALS)
        failed = wrong[:, None] * prob + good[:, None] * (prob * (1 - hit))
        values, index = np.unique(keys, return_inverse=True)
        if len(values) > MAX_ATOMS:
            raise ValueError(
                f"the log-ratio of a whole response takes more than {MAX_ATOMS} values, too many "
                "for a capped ratio; use cap=inf, ratio='block', fewer positions, or positions "
                "that are alike"
            )
        wrong = _by_value(index, failed, len(values))
        good = _by_value(index, good[:, None] * (prob * hit), len(values))
    return values, wrong, good


def _by_value(index: NDArray[np.int64], mass: Array, values: int, /) -> Array:
    sums: NDArray[Any] = np.bincount(index.ravel(), mass.ravel(), minlength=values)
    return sums
