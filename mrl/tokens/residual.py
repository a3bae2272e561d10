"""How far a source's sampled tokens are from the canonical tokens of their text.

A string's probability is the sum over its tokenisations, but a ratio between vocabularies is
formed from one on either side: ``log pi_B(canonical_B) - log pi_A(sampled)``. Where the source
sampled other than canonical tokens, ``r = log pi_A(sampled) - log pi_A(canonical)`` enters that
log-ratio as an error of ``-r``. It is zero for most rollouts and heavy-tailed for the others, so it
is described by quantiles, never by a mean alone. Source: docs/tokens.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVELS = (0.5, 0.75, 0.9, 0.99)
LARGE = 5.0  # nats: a factor of 148 in the ratio


@dataclass(frozen=True)
class ResidualSummary:
    """Distribution of the canonicality residual over rollouts.

    Parameters
    ----------
    count : int
        Rollouts described.
    zero_share : float
        Share with a residual of exactly 0; all canonical rollouts are among them.
    large_share : float
        Share with a magnitude above 5 nats.
    levels : tuple of float
        Quantile levels.
    signed, magnitude : tuple of float
        Quantiles of r and of ``|r|`` at these levels, in nats.
    """

    count: int
    zero_share: float
    large_share: float
    levels: tuple[float, ...]
    signed: tuple[float, ...]
    magnitude: tuple[float, ...]


def canonicality_residual(
    sampled_logprob: ArrayLike, canonical_logprob: ArrayLike, canonical: ArrayLike, /
) -> NDArray[np.float64]:
    """Per-rollout residual ``log pi_A(sampled) - log pi_A(canonical)`` in nats.

    Parameters
    ----------
    sampled_logprob, canonical_logprob : array_like, shape (...)
        Log-probs of the whole response under the source, EOS included where it finished with one.
    canonical : array_like of bool, shape (...)
        Whether the two are the same tokens; the residual is then exactly 0, whatever two forward
        passes round to.

    Returns
    -------
    ndarray, shape (...)
    """
    gap = np.subtract(sampled_logprob, canonical_logprob, dtype=np.float64)
    return np.where(canonical, 0.0, gap)


def summarise_residual(residual: ArrayLike, /) -> ResidualSummary:
    """Quantiles and tail shares of the residual of some rollouts.

    Parameters
    ----------
    residual : array_like, shape (n,)
        As `canonicality_residual` gives; finite, at least one.

    Raises
    ------
    ValueError
        If there is none, or one is not finite.
    """
    row = np.asarray(residual, dtype=np.float64)
    if row.ndim != 1 or row.size == 0 or not np.isfinite(row).all():
        raise ValueError(
            f"residual has shape {row.shape} and {np.count_nonzero(~np.isfinite(row))} values that "
            "are not finite; expected one finite number for each of at least one rollout"
        )
    size = np.abs(row)
    return ResidualSummary(
        count=row.size,
        zero_share=float(np.mean(row == 0)),
        large_share=float(np.mean(size > LARGE)),
        levels=LEVELS,
        signed=tuple(np.quantile(row, LEVELS).tolist()),
        magnitude=tuple(np.quantile(size, LEVELS).tolist()),
    )
