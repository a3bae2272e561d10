"""Worlds: contexts, arms, a reward table, and the policies that act in them.

Source: docs/theory.md, section 1.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bandit.policies import score_sum
from bandit.probes.group import Array, Mask

SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class World:
    """A contextual bandit with N policies; build one with `World.tabular`.

    Attributes
    ----------
    probs : ndarray, shape (N, X, K)
        Probability of each of K arms (responses) in each of X contexts (prompts), by policy.
    rewards : ndarray, shape (X, K)
        Verifier reward of each arm.
    weights : ndarray, shape (X,)
        Share of each context in the population; sums to 1.
    success_threshold : float
        An arm is a success when its reward reaches this value.

    Notes
    -----
    The arrays are read-only copies. Per-context results are never weighted; the functions that
    aggregate apply `weights`.
    """

    probs: Array
    rewards: Array
    weights: Array
    success_threshold: float = 1.0

    @classmethod
    def tabular(
        cls,
        probs: ArrayLike,
        rewards: ArrayLike,
        weights: ArrayLike | None = None,
        success_threshold: float = 1.0,
    ) -> "World":
        """Build a world of softmax policies with one logit for each context and arm.

        Parameters
        ----------
        probs : array_like, shape (N, X, K)
            Arm probabilities; each row sums to 1.
        rewards : array_like, shape (X, K)
            Finite rewards.
        weights : array_like, shape (X,), optional
            How often each context comes up, in any unit; divided by their sum. Default: equal.
        success_threshold : float
            Reward from which an arm counts as a success.

        Raises
        ------
        ValueError
            If a shape does not fit, or a value is out of range; the message says where.
        """
        table = np.array(probs, dtype=np.float64)
        if table.ndim != 3 or 0 in table.shape:
            raise ValueError(
                f"probs has shape {table.shape}; expected (policies, contexts, arms), none empty"
            )
        _check_distributions(table)
        pay = np.array(rewards, dtype=np.float64)
        if pay.shape != table.shape[1:]:
            raise ValueError(
                f"rewards has shape {pay.shape}; expected {table.shape[1:]}: "
                "one reward for each context and arm of probs"
            )
        if not np.isfinite(pay).all():
            raise ValueError(
                "rewards has a value that is not finite; expected a number for each context and arm"
            )
        if not np.isfinite(success_threshold):
            raise ValueError(f"success_threshold={success_threshold!r} is not a finite number")
        share = _normalised(np.ones(len(pay)) if weights is None else weights, len(pay))
        for array in (table, pay, share):
            array.flags.writeable = False
        return cls(table, pay, share, float(success_threshold))

    @property
    def n_policies(self) -> int:
        """N, the number of policies."""
        return self.probs.shape[0]

    @property
    def n_contexts(self) -> int:
        """X, the number of contexts."""
        return self.probs.shape[1]

    @property
    def n_arms(self) -> int:
        """K, the number of arms."""
        return self.probs.shape[2]

    @cached_property
    def success(self) -> Mask:
        """Which arms are successes, shape (X, K)."""
        return self.rewards >= self.success_threshold

    @cached_property
    def success_probability(self) -> Array:
        """Probability of a success by policy and context, shape (N, X)."""
        return np.where(self.success, self.probs, 0.0).sum(-1)

    @cached_property
    def value(self) -> Array:
        """Expected reward of each policy over the weighted contexts, shape (N,)."""
        return (self.probs * self.rewards).sum(-1) @ self.weights

    def true_gradient(self, policy: int, /) -> Array:
        """Gradient ``g*`` of each context's expected reward in the logits, shape (X, K)."""
        probs = self.probs[policy]
        return score_sum(probs * self.rewards, probs)

    def log_success_gradient(self, policy: int, /) -> Array:
        """``grad log p``, p the success probability; shape (X, K), NaN where p = 0."""
        probs, p = self.probs[policy], self.success_probability[policy][:, None]
        hits = np.where(self.success, probs, 0.0)
        conditional = np.divide(hits, p, out=np.full_like(hits, np.nan), where=p > 0)
        return conditional - probs


def rare_success(p: float, /, *, arms: int = 8) -> World:
    """One context where the receiver (policy 0) hardly succeeds and its peer does half the time.

    Two success arms: the receiver plays them with probability ``0.9 p`` and ``0.1 p``, the peer
    with 0.1 and 0.4; the rest is uniform. Source: docs/theory.md, section 4.
    """
    if not 0 <= p <= 1 or arms < 3:
        raise ValueError(f"got p={p!r} and arms={arms!r}; expected 0 <= p <= 1 and arms >= 3")
    rest = np.ones(arms - 2) / (arms - 2)
    receiver = np.concatenate([[0.9 * p, 0.1 * p], (1 - p) * rest])
    peer = np.concatenate([[0.1, 0.4], 0.5 * rest])
    return World.tabular([[receiver], [peer]], [[1.0, 1.0, *np.zeros(arms - 2)]])


def specialists(
    *,
    policies: int = 2,
    contexts_each: int = 4,
    arms: int = 8,
    weak: float = 0.005,
    strong: float = 0.8,
) -> World:
    """Policies with a skill each: `strong` on their own contexts, `weak` on all others.

    The first arm of each context is the success; failures share the rest evenly. A small `weak`
    is where a receiver's own groups are dead and only sharing can help.
    """
    sound = policies >= 1 and contexts_each >= 1 and arms >= 2
    if not sound or not (0 <= weak <= 1 and 0 <= strong <= 1):
        raise ValueError(
            f"got policies={policies}, contexts_each={contexts_each}, arms={arms}, weak={weak}, "
            f"strong={strong}; expected counts >= 1, arms >= 2 and probabilities in [0, 1]"
        )
    owner = np.repeat(np.arange(policies), contexts_each)
    hit = np.where(owner == np.arange(policies)[:, None], strong, weak)[..., None]
    miss = np.repeat((1 - hit) / (arms - 1), arms - 1, axis=-1)
    rewards = np.zeros((len(owner), arms))
    rewards[:, 0] = 1.0
    return World.tabular(np.concatenate([hit, miss], axis=-1), rewards)


def random_world(
    rng: np.random.Generator,
    /,
    *,
    policies: int = 2,
    contexts: int = 3,
    arms: int = 5,
    levels: tuple[float, ...] = (0.0, 1.0),
    max_ratio: float = 50.0,
) -> World:
    """Draw a world in which no probability ratio of two policies exceeds `max_ratio`.

    Every context has an arm of each reward level (as far as there are arms). Probabilities are
    Dirichlet draws, mixed with the uniform distribution until the bound holds.
    """
    if max_ratio <= 1:
        raise ValueError(f"max_ratio={max_ratio!r} is not allowed; expected a number > 1")
    probs = rng.dirichlet(np.ones(arms), size=(policies, contexts))
    excess = arms * probs.max() - 1
    lowest = arms * probs.min()
    # mixing with share m leaves (1 + (1-m) excess) / (m + (1-m) lowest) as a bound on the ratio
    mix = (1 + excess - max_ratio * lowest) / (max_ratio * (1 - lowest) + excess)
    mix = float(np.clip(mix, 0.0, 1.0))
    cycle = np.resize(np.asarray(levels), arms)
    rewards = np.stack([rng.permutation(cycle) for _ in range(contexts)])
    return World.tabular(
        (1 - mix) * probs + mix / arms,
        rewards,
        rng.random(contexts) + 0.1,
        success_threshold=max(levels),
    )


def _check_distributions(table: Array, /) -> None:
    bad: tuple[Any, ...] = np.nonzero(~(table >= 0) | ~np.isfinite(table))
    if len(bad[0]):
        at = tuple(int(index[0]) for index in bad)
        raise ValueError(
            f"probs[{at}] = {float(table[at])!r} is not a probability; expected "
            "numbers >= 0 that sum to 1 over the arms"
        )
    total = table.sum(-1)
    bad = np.nonzero(np.abs(total - 1) > SUM_TOLERANCE)
    if len(bad[0]):
        policy, context = int(bad[0][0]), int(bad[1][0])
        got = float(total[policy, context])
        raise ValueError(
            f"probs of policy {policy} in context {context} sum to {got!r}; "
            f"expected 1 within {SUM_TOLERANCE}; divide by the sum if they are unnormalised"
        )


def _normalised(weights: ArrayLike, contexts: int, /) -> Array:
    share = np.array(weights, dtype=np.float64)
    if share.shape != (contexts,):
        raise ValueError(f"weights has shape {share.shape}; expected ({contexts},): one a context")
    if not (np.isfinite(share).all() and (share >= 0).all() and share.sum() > 0):
        raise ValueError(
            "weights must be finite and >= 0 with a positive sum; got "
            f"values from {float(share.min())!r} to {float(share.max())!r}"
        )
    return share / share.sum()
