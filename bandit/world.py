"""Worlds: contexts, arms, a reward table, and the policies that act in them.

Source: docs/theory.md, section 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bandit.policies import pull_back, score_sum, softmax
from bandit.probes.group import Array, Mask

SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class World:
    """A contextual bandit with N policies; build one with `World.tabular` or `World.linear`.

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
    features : tuple of ndarray, shape (X, K, D_i), or None
        The linear features of each policy, whose D_i parameters all contexts share. None: a
        table with one logit for each context and arm.
    parameters : tuple of ndarray, shape (D_i,), or None
        The parameters that gave `probs`, with features only.
    wrong_verdict : ndarray, shape (X, K), or None
        Probability that the verifier gives a rollout of an arm the other of two rewards; None: it
        never errs.

    Notes
    -----
    The arrays are read-only copies. Per-context results are never weighted; the functions that
    aggregate apply `weights`.
    """

    probs: Array
    rewards: Array
    weights: Array
    success_threshold: float = 1.0
    features: tuple[Array, ...] | None = None
    parameters: tuple[Array, ...] | None = None
    wrong_verdict: Array | None = None

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
        _freeze(table, pay, share)
        return cls(table, pay, share, float(success_threshold))

    @classmethod
    def linear(
        cls,
        features: Sequence[ArrayLike],
        parameters: Sequence[ArrayLike],
        rewards: ArrayLike,
        weights: ArrayLike | None = None,
        success_threshold: float = 1.0,
    ) -> "World":
        """Build a world of softmax policies with linear features: logits ``phi(x, y) . theta``.

        All contexts share a policy's parameters, so what it learns in one moves it in others. Each
        policy has features of its own; gradients are with respect to its D_i parameters.

        Parameters
        ----------
        features : sequence of N array_like, shape (X, K, D_i)
            ``phi(x, y)`` of each policy.
        parameters : sequence of N array_like, shape (D_i,)
            ``theta`` of each policy.
        rewards, weights, success_threshold
            As in `World.tabular`.

        Raises
        ------
        ValueError
            If a shape does not fit, or a value is not finite.
        """
        phis = tuple(np.array(phi, dtype=np.float64) for phi in features)
        thetas = tuple(np.array(theta, dtype=np.float64) for theta in parameters)
        if not phis or len(phis) != len(thetas):
            raise ValueError(
                f"got features of {len(phis)} policies and parameters of {len(thetas)}; expected "
                "one of each for every policy"
            )
        for i, (phi, theta) in enumerate(zip(phis, thetas, strict=True)):
            if phi.ndim != 3 or 0 in phi.shape or phi.shape[:2] != phis[0].shape[:2]:
                raise ValueError(
                    f"features of policy {i} have shape {phi.shape}; expected (contexts, arms, "
                    "features), none empty, with the contexts and arms of policy 0"
                )
            if theta.shape != phi.shape[2:]:
                raise ValueError(
                    f"parameters of policy {i} have shape {theta.shape}; expected "
                    f"{phi.shape[2:]}: one for each feature"
                )
            if not (np.isfinite(phi).all() and np.isfinite(theta).all()):
                raise ValueError(f"features or parameters of policy {i} are not all finite numbers")
        with np.errstate(over="ignore", invalid="ignore"):
            logits = [phi @ theta for phi, theta in zip(phis, thetas, strict=True)]
        for i, each in enumerate(logits):
            if not np.isfinite(each).all():
                raise ValueError(
                    f"logits of policy {i} overflow; make its features or parameters smaller"
                )
        probs = np.stack([softmax(each) for each in logits])
        _freeze(*phis, *thetas)
        world = cls.tabular(probs, rewards, weights, success_threshold)
        return replace(world, features=phis, parameters=thetas)

    def noisy(self, *, false_positive: ArrayLike = 0.0, false_negative: ArrayLike = 0.0) -> "World":
        """Build this world with a verifier that errs, independently for each rollout.

        Rules see the verdicts. What they are judged by does not change: `value`, `true_gradient`
        and the support gain speak of the true rewards.

        Parameters
        ----------
        false_positive : array_like broadcastable to (X, K)
            Probability that a failure is called a success. A table of zeros and ones is a verifier
            that is always wrong about certain arms.
        false_negative : array_like broadcastable to (X, K)
            Probability that a success is called a failure.

        Raises
        ------
        ValueError
            If a value is no probability, or rewards do not take exactly two values.
        """
        if self.wrong_verdict is not None:
            raise ValueError("this world's verifier errs already; start from the world without")
        levels = np.unique(self.rewards)
        if len(levels) != 2 or self.success.all() or not self.success.any():
            raise ValueError(
                f"rewards take the values {levels.tolist()[:6]}; a verifier that errs needs "
                "exactly two, a failure's and a success's"
            )
        table = np.where(
            self.success,
            _table("false_negative", false_negative, self.rewards.shape),
            _table("false_positive", false_positive, self.rewards.shape),
        )
        _freeze(table)
        return replace(self, wrong_verdict=table)

    def with_policies(self, order: Sequence[int], /) -> "World":
        """Build this world with policies chosen and ordered by index; one may occur twice."""
        chosen = list(order)
        known = set(range(self.n_policies))
        if not chosen or any(isinstance(i, bool) or i not in known for i in chosen):
            raise ValueError(
                f"got policies {chosen}; expected at least one of 0 to {self.n_policies - 1}"
            )
        probs = self.probs[chosen]
        _freeze(probs)
        return replace(
            self,
            probs=probs,
            features=None if self.features is None else tuple(self.features[i] for i in chosen),
            parameters=None
            if self.parameters is None
            else tuple(self.parameters[i] for i in chosen),
        )

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

    @cached_property
    def called_success(self) -> Array:
        """Probability that the verifier calls a rollout of an arm a success, shape (X, K)."""
        if self.wrong_verdict is None:
            return self.success.astype(np.float64)
        return np.where(self.success, 1.0 - self.wrong_verdict, self.wrong_verdict)

    @cached_property
    def verdict_probability(self) -> Array:
        """Probability that a rollout is called a success, by policy and context, shape (N, X)."""
        return (self.probs * self.called_success).sum(-1)

    def verdict_table(self, levels: Array, /) -> Array:
        """Probability that a rollout of an arm gets each reward, shape (X, L, K).

        Parameters
        ----------
        levels : ndarray, shape (L,)
            Rewards; all that occur, if the verifier errs.
        """
        given = self.rewards[:, None, :] == levels[:, None]
        if self.wrong_verdict is None:
            return given.astype(np.float64)
        wrong = self.wrong_verdict[:, None, :]
        return np.where(given, 1.0 - wrong, wrong)

    def features_of(self, policy: int, /) -> Array | None:
        """Linear features of one policy, shape (X, K, D); None for a table of logits."""
        return None if self.features is None else self.features[policy]

    def n_parameters(self, policy: int, /) -> int:
        """Columns D of a policy's per-context gradients; K for a table of logits."""
        return self.n_arms if self.features is None else self.features[policy].shape[-1]

    def true_gradient(self, policy: int, /) -> Array:
        """Gradient ``g*`` of each context's expected reward in the parameters, shape (X, D)."""
        probs = self.probs[policy]
        return pull_back(score_sum(probs * self.rewards, probs), self.features_of(policy))

    def log_success_gradient(self, policy: int, /) -> Array:
        """``grad log p``, p the success probability; shape (X, D), NaN where p = 0."""
        probs, p = self.probs[policy], self.success_probability[policy][:, None]
        hits = np.where(self.success, probs, 0.0)
        conditional = np.divide(hits, p, out=np.full_like(hits, np.nan), where=p > 0)
        return pull_back(conditional - probs, self.features_of(policy))


def _freeze(*arrays: Array) -> None:
    for array in arrays:
        array.flags.writeable = False


def _table(name: str, values: ArrayLike, shape: tuple[int, ...], /) -> Array:
    """Check probabilities and spread them over (X, K)."""
    table = np.asarray(values, dtype=np.float64)
    if not ((table >= 0) & (table <= 1)).all():
        raise ValueError(f"{name}={values!r} is not allowed; expected numbers in [0, 1]")
    try:
        return np.broadcast_to(table, shape)
    except ValueError:
        raise ValueError(
            f"{name} has shape {table.shape}; expected one that broadcasts to "
            f"(contexts, arms) = {shape}"
        ) from None


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
