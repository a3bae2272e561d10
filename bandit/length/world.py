"""The length world itself: policies that choose L tokens, and which tokens are right.

Source: docs/theory.md, section 7.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bandit.design import whole_number
from bandit.length.weights import log_right, product
from bandit.policies import score_sum
from bandit.probes.group import Array, Mask
from bandit.world import SUM_TOLERANCE, World

MAX_STRINGS = 4096
LEVELS = np.array([0.0, 1.0])  # rewards of the two classes, in this order everywhere
LEVELS.flags.writeable = False


@dataclass(frozen=True, eq=False)
class LengthWorld:
    """One prompt whose responses are L independent tokens; build one with `LengthWorld.of`.

    Attributes
    ----------
    probs : ndarray, shape (N, L, V)
        Probability of each of V tokens at each position, by policy.
    right : ndarray of bool, shape (L, V)
        Tokens that are right at each position. A response has reward 1 if all its tokens are
        right, else 0; a position at which all tokens are right is free.

    Notes
    -----
    The arrays are read-only copies. Gradients are with respect to the (L, V) logits.
    """

    probs: Array
    right: Mask

    @classmethod
    def of(cls, probs: ArrayLike, right: ArrayLike, length: int | None = None) -> "LengthWorld":
        """Check and complete a world.

        Parameters
        ----------
        probs : array_like, shape (N, L, V), or (N, V) with `length`
            Token distributions; without an axis for positions, each policy has one for all.
        right : array_like of bool, shape (L, V) or (V,)
            Tokens that are right.
        length : int, optional
            L, with `probs` of two axes only.

        Raises
        ------
        ValueError
            If a shape does not fit, or a row of `probs` is not a distribution.
        """
        table, mask = np.array(probs, dtype=np.float64), np.array(right)
        if length is not None and table.ndim == 2:
            table = np.repeat(table[:, None, :], whole_number("length", length, 1), axis=1)
        elif length is not None or table.ndim != 3:
            raise ValueError(
                f"probs has shape {table.shape} and length={length!r}; expected (policies, "
                "positions, tokens), or (policies, tokens) together with a length"
            )
        if 0 in table.shape:
            raise ValueError(f"probs has shape {table.shape}; expected no empty axis")
        if mask.dtype != np.bool_ or mask.shape not in (table.shape[1:], table.shape[2:]):
            raise ValueError(
                f"right has shape {mask.shape} and dtype {mask.dtype}; expected bool of shape "
                f"{table.shape[1:]} or {table.shape[2:]}: one for each token"
            )
        total = np.where(np.isfinite(table), table, -1.0).sum(-1)
        sound = (table >= 0).all(-1) & (np.abs(total - 1) <= SUM_TOLERANCE)
        if not sound.all():
            policy, position = np.argwhere(~sound)[0].tolist()
            raise ValueError(
                f"probs[{policy}, {position}] = {table[policy, position].tolist()} is no "
                f"distribution; expected numbers >= 0 that sum to 1 within {SUM_TOLERANCE}"
            )
        mask = np.broadcast_to(mask, table.shape[1:]).copy()
        for array in (table, mask):
            array.flags.writeable = False
        return cls(table, mask)

    @property
    def length(self) -> int:
        """L, the number of positions."""
        return self.probs.shape[1]

    @cached_property
    def outcomes(self) -> World:
        """The world of two arms, failure and success: all that a rule sees of the responses."""
        success = log_right(self.probs, self.right).sum(-1, keepdims=True)
        both = np.stack([-np.expm1(success), np.exp(success)], axis=-1)
        return World.tabular(both, LEVELS[None])

    @property
    def success_probability(self) -> Array:
        """``prod_l P(right at l)`` of each policy, shape (N,)."""
        return self.outcomes.success_probability[:, 0]

    def true_gradient(self, policy: int, /) -> Array:
        """Gradient ``g*`` of the expected reward, shape (L, V)."""
        probs = self.probs[policy]
        return score_sum(product(probs, self.right)[1], probs)

    def chi_squared(self, receiver: int, peer: int, /) -> float:
        """``prod_l (1 + chi2_l) - 1``; inf where the peer lacks a token, or beyond float64."""
        mine, its = self.probs[receiver], self.probs[peer]
        missing = np.where(mine > 0, np.inf, 0.0)
        ratios = np.divide(np.square(mine), its, out=missing, where=its > 0).sum(-1)
        with np.errstate(over="ignore"):
            return float(np.expm1(np.log(ratios).sum()))

    def strings(self) -> NDArray[np.int64]:
        """All responses in order, shape (V^L, L).

        Raises
        ------
        ValueError
            If there are more than `MAX_STRINGS`.
        """
        tokens = self.probs.shape[2]
        if tokens**self.length > MAX_STRINGS:
            raise ValueError(
                f"{tokens} tokens at {self.length} positions make {tokens**self.length} strings; "
                f"expected at most {MAX_STRINGS}; bandit.length.moments forms none of them"
            )
        return np.stack(np.unravel_index(np.arange(tokens**self.length), (tokens,) * self.length)).T

    def to_world(self) -> World:
        """Enumerate the strings: the world in which each response is an arm.

        Its gradients are with respect to a logit a string. Those of the tokens' logits are
        ``Phi^T`` times them, with `Phi` the one-hot tokens of each string.

        Raises
        ------
        ValueError
            If there are more than `MAX_STRINGS` strings.
        """
        strings, positions = self.strings(), np.arange(self.length)
        joint: Array = np.prod(self.probs[:, positions, strings], axis=-1)
        rewards = LEVELS[self.right[positions, strings].all(-1).astype(np.int64)]
        return World.tabular(joint[:, None, :], rewards[None])


def long_answer(
    length: int, /, *, p: float = 0.05, q: float = 0.5, style: float = 0.6, late: float = 0.75
) -> LengthWorld:
    """Receiver and peer whose success probabilities do not depend on the length.

    Each position has two right tokens, which differ in nothing but style, and a wrong one.

    Parameters
    ----------
    length : int
        L.
    p, q : float
        Success probability of the receiver (policy 0) and of its peer, in (0, 1].
    style : float
        How often the receiver takes the first style; the peer takes the other as often. In
        (0, 1). Given right tokens, ``1 + chi2`` of a position is
        ``style^2 / (1 - style) + (1 - style)^2 / style``: 1 at 0.5.
    late : float
        Share of ``log p`` in the second half of the response, where the receiver slips; the peer
        has this share in the first half. In [0, 1]; 0.5: even. A response of one token has no
        halves.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    length = whole_number("length", length, 1)
    if not (0 < p <= 1 and 0 < q <= 1 and 0 < style < 1 and 0 <= late <= 1):
        raise ValueError(
            f"got p={p!r}, q={q!r}, style={style!r}, late={late!r}; expected p and q in (0, 1], "
            "style in (0, 1) and late in [0, 1]"
        )
    after = length // 2

    def policy(success: float, share: float, first: float) -> Array:
        halves = [(length - after, 1 - share if after else 1.0), (after, share)]
        right = np.concatenate([np.full(n, success ** (part / n)) for n, part in halves if n])
        return np.stack([first * right, (1 - first) * right, 1 - right], axis=-1)

    return LengthWorld.of(
        [policy(p, late, style), policy(q, 1 - late, 1 - style)], [True, True, False]
    )
