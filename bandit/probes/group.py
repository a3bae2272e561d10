"""What a probe sees of one prompt: the rewards of the receiver's group and of its peers'."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

STATISTICS = ("n", "mean", "M2", "min", "max")


@dataclass(frozen=True, eq=False)
class Group:
    """Rewards of a receiver's own rollouts and of its peers' rollouts, for a batch of prompts.

    Parameters
    ----------
    own_rewards : array_like, shape (..., G)
        Verifier rewards of the receiver's rollouts. NaN or None: not verified.
    peer_rewards : array_like, shape (..., M), optional
        Verifier rewards of the peers' rollouts. NaN or None: not verified.
    peer_source : array_like of int, shape (M,), optional
        Which peer each peer rollout came from. Default: all from one peer.
    own_valid, peer_valid : array_like of bool, optional
        False leaves a rollout out of every mean and count. A reward that is NaN is never valid.
    peer_representable : array_like of bool, shape (..., M), optional
        False where the receiver's tokenizer cannot represent the text. Rules that need the text
        treat such a rollout as absent; rules on reward statistics still count its reward.
    peer_stats : array_like, shape (..., P, 5), optional
        One row a peer, ``(n, mean, M2, min, max)``, in place of `peer_rewards` where only
        statistics travelled. `M2` is the sum of squared deviations from the mean.
    success_threshold : float
        A valid rollout is a success when its reward reaches this value.

    Raises
    ------
    ValueError
        If shapes do not fit, a reward is infinite, or statistics contradict themselves.

    Notes
    -----
    Source: docs/theory.md, section 1. Arrays are held as read-only float64 and bool views or
    copies; the inputs are never changed.
    """

    own_rewards: Any
    peer_rewards: Any = None
    peer_source: Any = None
    own_valid: Any = None
    peer_valid: Any = None
    peer_representable: Any = None
    peer_stats: Any = None
    success_threshold: float = 1.0

    def __post_init__(self) -> None:
        own = _rewards("own_rewards", self.own_rewards)
        batch = own.shape[:-1]
        if self.peer_stats is not None and self.peer_rewards is not None:
            raise ValueError(
                "got both peer_rewards and peer_stats; expected one of them: "
                "statistics stand for rewards that did not travel"
            )
        given = np.empty((*batch, 0)) if self.peer_rewards is None else self.peer_rewards
        peer = _rewards("peer_rewards", given)
        if peer.shape[:-1] != batch:
            raise ValueError(
                f"peer_rewards has batch shape {peer.shape[:-1]}; "
                f"expected {batch} as in own_rewards {own.shape}"
            )
        if not np.isfinite(self.success_threshold):
            raise ValueError(f"success_threshold={self.success_threshold!r} is not a finite number")
        source = self.peer_source
        source = np.zeros(peer.shape[-1], np.int64) if source is None else np.asarray(source)
        if source.shape != peer.shape[-1:] or source.dtype.kind not in "iu":
            raise ValueError(
                f"peer_source has shape {source.shape} and dtype {source.dtype}; "
                f"expected integers of shape {peer.shape[-1:]}, one for each peer rollout"
            )
        fields = {
            "own_rewards": own,
            "peer_rewards": peer,
            "peer_source": source,
            "own_valid": _mask("own_valid", self.own_valid, own.shape) & ~np.isnan(own),
            "peer_valid": _mask("peer_valid", self.peer_valid, peer.shape) & ~np.isnan(peer),
            "peer_representable": _mask("peer_representable", self.peer_representable, peer.shape),
            "peer_stats": None if self.peer_stats is None else _statistics(self.peer_stats, batch),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, _read_only(value))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading shape: one entry a prompt (or replica, or context)."""
        return self.own_rewards.shape[:-1]

    @property
    def own_success(self) -> Mask:
        """Valid own rollouts whose reward reaches the threshold, shape (..., G)."""
        return self.own_valid & (self.own_rewards >= self.success_threshold)

    @property
    def peer_usable(self) -> Mask:
        """Valid peer rollouts whose text the receiver can represent, shape (..., M)."""
        return self.peer_valid & self.peer_representable

    @property
    def peer_success(self) -> Mask:
        """Usable peer rollouts whose reward reaches the threshold, shape (..., M)."""
        return self.peer_usable & (self.peer_rewards >= self.success_threshold)


def _rewards(name: str, values: ArrayLike, /) -> Array:
    rewards = np.asarray(values, dtype=np.float64)
    if rewards.ndim == 0:
        raise ValueError(f"{name} is a single number; expected one reward for each rollout")
    if np.isinf(rewards).any():
        raise ValueError(
            f"{name} has infinite rewards; expected finite numbers, or NaN/None where "
            "the verifier gave no verdict"
        )
    return rewards


def _mask(name: str, values: ArrayLike | None, shape: tuple[int, ...], /) -> Mask:
    if values is None:
        return np.ones(shape, np.bool_)
    mask = np.asarray(values)
    if mask.dtype != np.bool_:
        raise ValueError(f"{name} has dtype {mask.dtype}; expected bool")
    try:
        return np.broadcast_to(mask, shape)
    except ValueError:
        raise ValueError(f"{name} has shape {mask.shape}; expected {shape}") from None


def _statistics(values: ArrayLike, batch: tuple[int, ...], /) -> Array:
    stats = np.asarray(values, dtype=np.float64)
    if stats.ndim != len(batch) + 2 or stats.shape[:-2] != batch or stats.shape[-1] != 5:
        raise ValueError(
            f"peer_stats has shape {stats.shape}; expected {(*batch, 'peers', 5)}: "
            f"one row {STATISTICS} for each peer"
        )
    n, mean, m2, low, high = np.moveaxis(stats, -1, 0)
    if not (np.isfinite(n) & (n >= 0) & (n == np.floor(n))).all():
        raise ValueError("peer_stats has a count n that is not a whole number >= 0")
    seen = n > 0
    slack = 1e-9 * (1.0 + np.abs(np.where(seen, mean, 0.0)))
    sound = np.isfinite(stats).all(-1) & (m2 >= 0) & (low - slack <= mean) & (mean <= high + slack)
    if not (sound | ~seen).all():
        raise ValueError(
            "peer_stats has a row that no rewards can have; expected finite numbers "
            "with M2 >= 0 and min <= mean <= max wherever n > 0"
        )
    return stats


def _read_only(value: Any, /) -> Any:
    if value is None:
        return None
    view = value.view()
    view.flags.writeable = False
    return view
