"""What a tokenizer mismatch does to a peer's rollout on its way to the receiver.

Three things can go wrong with text that another tokenizer produced: its log-ratio carries an
error delta, the receiver cannot represent it, or the source did not sample its canonical tokens.
Source: docs/theory.md, section 2 (PRP).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr

from bandit.probes.credit import RatioRule
from bandit.probes.group import Array, Mask

Integers = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Residual:
    """Tokenizer residual of peers' rollouts; the default is no mismatch at all.

    Parameters
    ----------
    mu, sigma : float or array_like broadcastable to (X, K), or {peer: such}
        Mean and standard deviation of the normal error delta of the log-ratio, in nats, possibly by
        context and arm; drawn independently for each peer rollout.
    drop : float or array_like broadcastable to (X, K), or {peer: such}
        Probability that the receiver cannot represent the rollout.
    gate : float or array_like broadcastable to (X, K), or {peer: such}
        Probability that a rollout fails the canonicality gate, given its arm independently of all
        else.
    samples : array_like, shape (S,), or {peer: such}, optional
        Draw delta from these values in place of the normal distribution.

    Raises
    ------
    ValueError
        If a value is out of range, or both samples and a normal distribution are given.

    Notes
    -----
    A peer that a mapping does not name has 0 (no error, nothing dropped, nothing gated).
    """

    mu: Any = 0.0
    sigma: Any = 0.0
    drop: Any = 0.0
    gate: Any = 0.0
    samples: Any = None

    def __post_init__(self) -> None:
        _check("mu", self.mu, -np.inf, np.inf, 2)
        _check("sigma", self.sigma, 0.0, np.inf, 2)
        _check("drop", self.drop, 0.0, 1.0, 2)
        _check("gate", self.gate, 0.0, 1.0, 2)
        if self.samples is None:
            return
        _check("samples", self.samples, -np.inf, np.inf, 1)
        if any(np.any(value) for value in (*_entries(self.mu), *_entries(self.sigma))):
            raise ValueError(
                "got samples together with mu or sigma; expected one of them: the "
                "samples stand for the normal distribution"
            )

    @classmethod
    def empirical(cls, samples: Any, drop: Any = 0.0, gate: Any = 0.0) -> "Residual":
        """Take delta from measured values: an array, or one array a peer."""
        return cls(drop=drop, gate=gate, samples=samples)

    def drop_table(self, peer: int, shape: tuple[int, ...], /) -> Array:
        """Drop probabilities of one peer's arms, shape (X, K).

        Raises
        ------
        ValueError
            If the values given do not broadcast to ``shape``.
        """
        return self._table("drop", peer, shape)

    def weight_moments(
        self, rule: RatioRule, log_ratio: ArrayLike, peer: int, /
    ) -> tuple[Array, Array]:
        """``E[w]`` and ``E[w^2]`` of a peer rollout's weight over delta and gate.

        For ``delta ~ N(mu, sigma^2)``, ``m = log_ratio + mu`` and ``t = (ln cap - m) / sigma``::

            E[w]   = exp(m + sigma^2/2)   Phi(t - sigma)   + cap   Phi(-t)
            E[w^2] = exp(2m + 2 sigma^2)  Phi(t - 2 sigma) + cap^2 Phi(-t)

        Parameters
        ----------
        rule : RatioRule
            Cap and gate; ``kind="none"`` has weight 1, without delta or gate.
        log_ratio : array_like, shape (X, K)
            Exact log-ratio receiver to peer, ``-inf`` where the receiver never plays the arm. Any
            shape will do if no setting depends on context and arm.
        peer : int
            The source.

        Returns
        -------
        first, second : ndarray, shape (X, K)
            The two moments; inf where they overflow.

        Raises
        ------
        ValueError
            If a setting's shape does not fit.
        """
        log_ratio = np.asarray(log_ratio, dtype=np.float64)
        if rule.kind == "none":
            return np.ones_like(log_ratio), np.ones_like(log_ratio)
        mu, sigma, gate = (
            self._table(name, peer, log_ratio.shape) for name in ("mu", "sigma", "gate")
        )
        samples = self._samples(peer)
        if samples is not None:
            first, second = _empirical_moments(rule, log_ratio, samples)
        else:
            first, second = _normal_moments(rule, log_ratio + mu, sigma)
        passing = 1.0 - gate if rule.gated else 1.0
        return passing * first, passing * second

    def draw_delta(
        self, peer: int, arms: Integers, shape: tuple[int, ...], rng: np.random.Generator, /
    ) -> Array:
        """Draw the errors of one peer's log-ratios.

        Parameters
        ----------
        peer : int
            The source.
        arms : ndarray of int, shape (..., X, R)
            Its rollouts.
        shape : tuple of int
            (X, K) of the world.
        rng : numpy.random.Generator
            Their random stream.

        Returns
        -------
        ndarray, shape (..., X, R)
        """
        samples = self._samples(peer)
        if samples is not None:
            return rng.choice(samples, size=arms.shape)
        mu = self._of_arms("mu", peer, arms, shape)
        sigma = self._of_arms("sigma", peer, arms, shape)
        return mu + sigma * rng.standard_normal(arms.shape) if np.any(sigma) else mu

    def draw_canonical(
        self, peer: int, arms: Integers, shape: tuple[int, ...], rng: np.random.Generator, /
    ) -> Mask:
        """Which rollouts of one peer pass the gate, shape (..., X, R); see `draw_delta`."""
        return self._draw_kept("gate", peer, arms, shape, rng)

    def draw_representable(
        self, peer: int, arms: Integers, shape: tuple[int, ...], rng: np.random.Generator, /
    ) -> Mask:
        """Which rollouts of one peer can be represented, shape (..., X, R); see `draw_delta`."""
        return self._draw_kept("drop", peer, arms, shape, rng)

    def _draw_kept(
        self,
        name: str,
        peer: int,
        arms: Integers,
        shape: tuple[int, ...],
        rng: np.random.Generator,
        /,
    ) -> Mask:
        lost = self._of_arms(name, peer, arms, shape)
        if not np.any(lost):
            return np.broadcast_to(np.True_, arms.shape)
        return rng.random(arms.shape) >= lost

    @property
    def named(self) -> set[Any]:
        """The peers that its mappings name."""
        settings = (self.mu, self.sigma, self.drop, self.gate, self.samples)
        return {peer for each in settings if isinstance(each, Mapping) for peer in each}

    def is_exact(self, peer: int, /) -> bool:
        """Whether a peer's log-ratios carry no error."""
        nothing = not (np.any(_of(self.mu, peer)) or np.any(_of(self.sigma, peer)))
        return nothing and self._samples(peer) is None

    def drops(self, peer: int, /) -> bool:
        """Whether any rollout of a peer can be lost."""
        return bool(np.any(_of(self.drop, peer)))

    def _table(self, name: str, peer: int, shape: tuple[int, ...], /) -> Array:
        table = np.asarray(_of(getattr(self, name), peer), dtype=np.float64)
        try:
            return np.broadcast_to(table, shape)
        except ValueError:
            raise ValueError(
                f"{name} of peer {peer} has shape {table.shape}; expected one that "
                f"broadcasts to (contexts, arms) = {shape}"
            ) from None

    def _of_arms(self, name: str, peer: int, arms: Integers, shape: tuple[int, ...], /) -> Array:
        """Setting of each rollout; one number where it is the same for all."""
        setting = np.asarray(_of(getattr(self, name), peer), dtype=np.float64)
        if setting.ndim == 0:
            return setting
        return self._table(name, peer, shape)[np.arange(shape[0])[:, None], arms]

    def _samples(self, peer: int, /) -> Array | None:
        if self.samples is None or (isinstance(self.samples, Mapping) and peer not in self.samples):
            return None
        return np.asarray(_of(self.samples, peer), dtype=np.float64)


def _normal_moments(rule: RatioRule, mean: Array, sigma: Array, /) -> tuple[Array, Array]:
    cap = rule.cap
    if not sigma.any():
        first = rule.weights(mean)
        return first, np.square(first)
    with np.errstate(over="ignore"):
        if np.isinf(cap):
            return np.exp(mean + sigma**2 / 2), np.exp(2 * mean + 2 * sigma**2)
        t = (np.log(cap) - mean) / np.where(sigma > 0, sigma, 1.0)
        # products of a huge exponential and a tiny tail are formed in logs
        first = np.exp(mean + sigma**2 / 2 + log_ndtr(t - sigma)) + cap * ndtr(-t)
        second = np.exp(2 * mean + 2 * sigma**2 + log_ndtr(t - 2 * sigma)) + cap**2 * ndtr(-t)
    sure = rule.weights(mean)
    return np.where(sigma > 0, first, sure), np.where(sigma > 0, second, np.square(sure))


def _empirical_moments(rule: RatioRule, log_ratio: Array, samples: Array, /) -> tuple[Array, Array]:
    values, counts = np.unique(samples, return_counts=True)
    first, second = np.zeros_like(log_ratio), np.zeros_like(log_ratio)
    for value, share in zip(values, counts / counts.sum(), strict=True):
        weights = rule.weights(log_ratio + value)
        first += share * weights
        second += share * np.square(weights)
    return first, second


def _of(setting: Any, peer: int, /) -> Any:
    return setting.get(peer, 0.0) if isinstance(setting, Mapping) else setting


def _entries(setting: Any, /) -> list[Any]:
    return list(setting.values()) if isinstance(setting, Mapping) else [setting]


def _check(name: str, setting: Any, low: float, high: float, max_ndim: int, /) -> None:
    for entry in _entries(setting):
        values = np.asarray(entry, dtype=np.float64)
        least = 1 if name == "samples" else 0
        if not least <= values.ndim <= max_ndim or values.size == 0:
            raise ValueError(
                f"{name} has an entry of shape {values.shape}; expected {least} to "
                f"{max_ndim} axes, not empty"
            )
        if not (np.isfinite(values) & (values >= low) & (values <= high)).all():
            raise ValueError(
                f"{name}={setting!r} is not allowed; expected finite numbers in [{low}, {high}]"
            )


NO_RESIDUAL = Residual()
