"""Aligned blocks of two tokenisations, and what moves across them.

Log-probs are extensive: summed over a block (`block_sum`) and, where a per-token value is wanted,
shared out again (`apportion`). Advantages are intensive: repeated over a block (`broadcast`).
Masks hold for a block where they hold for all of it (`block_all`).
Source: docs/tokens.md.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Aligned blocks: block i holds the tokens ``a[i]:a[i+1]`` and ``b[i]:b[i+1]``.

    Parameters
    ----------
    a, b : ndarray of int, shape (n+1,)
        Token boundaries of the blocks on either side, starting at 0.
    size : ndarray of int, shape (n,)
        Bytes in each block; 0 for the EOS block.
    dropped : (int, int)
        Tokens after the last block on either side, left out by ``partial="drop"``.
    """

    a: Integers
    b: Integers
    size: Integers
    dropped: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.size)

    @property
    def positions(self) -> Integers:
        """Byte positions of the block boundaries, shape (n+1,)."""
        return np.concatenate([[0], np.cumsum(self.size)]).astype(np.int64)

    @property
    def one_to_one(self) -> Mask:
        """Which blocks are one token on either side, shape (n,)."""
        return (np.diff(self.a) == 1) & (np.diff(self.b) == 1)

    def mask(self, mask_a: ArrayLike, mask_b: ArrayLike, /) -> Mask:
        """Which blocks are kept by every one of their tokens on both sides, shape (n,).

        Parameters
        ----------
        mask_a, mask_b : array_like of bool, shape (tokens of the side,)
            True keeps a token.
        """
        return block_all(mask_a, self.a) & block_all(mask_b, self.b)


def block_sum(values: ArrayLike, bounds: Integers, /) -> NDArray[np.float64]:
    """Sum over the tokens of each block: how extensive quantities (log-probs) move.

    Parameters
    ----------
    values : array_like, shape (..., tokens)
        One value a token; at least ``bounds[-1]`` of them, those after it are not read.
    bounds : ndarray of int, shape (n+1,)
        `Blocks.a` or `Blocks.b`.

    Returns
    -------
    ndarray, shape (..., n)
        0 for a block without tokens on this side. Each block is summed on its own, not as a
        difference of running sums, so a block far into a long text keeps its digits.
    """
    row = np.asarray(values, dtype=np.float64)
    starts, filled = _filled(row.shape, bounds)
    sums = np.zeros((*row.shape[:-1], bounds.size - 1))
    if starts.size:
        sums[..., filled] = np.add.reduceat(row[..., : bounds[-1]], starts, axis=-1)
    return sums


def block_all(mask: ArrayLike, bounds: Integers, /) -> Mask:
    """Whether every token of a block is kept; True for a block without tokens on this side.

    Parameters
    ----------
    mask : array_like of bool, shape (..., tokens)
        True keeps a token; at least ``bounds[-1]`` of them.
    bounds : ndarray of int, shape (n+1,)
        `Blocks.a` or `Blocks.b`.

    Returns
    -------
    ndarray of bool, shape (..., n)
    """
    row = np.asarray(mask, dtype=bool)
    starts, filled = _filled(row.shape, bounds)
    kept = np.ones((*row.shape[:-1], bounds.size - 1), bool)
    if starts.size:
        kept[..., filled] = np.logical_and.reduceat(row[..., : bounds[-1]], starts, axis=-1)
    return kept


def broadcast(values: ArrayLike, bounds: Integers, /) -> NDArray[Any]:
    """Repeat a block's value on each of its tokens: how intensive quantities move.

    Parameters
    ----------
    values : array_like, shape (..., n)
        One value a block.
    bounds : ndarray of int, shape (n+1,)
        `Blocks.a` or `Blocks.b`.

    Returns
    -------
    ndarray, shape (..., bounds[-1])
    """
    return np.repeat(_one_a_block(np.asarray(values), bounds), np.diff(bounds), axis=-1)


def apportion(
    sums: ArrayLike, bounds: Integers, /, *, lengths: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Share each block's sum out to its tokens, so that `block_sum` gives it back.

    Parameters
    ----------
    sums : array_like, shape (..., n)
        One extensive value a block.
    bounds : ndarray of int, shape (n+1,)
        Boundaries of the side that receives: `Blocks.a` or `Blocks.b`.
    lengths : array_like of int, shape (tokens,), optional
        Share by bytes; a zero-byte block is shared equally. Default: equal shares.

    Returns
    -------
    ndarray, shape (..., bounds[-1])

    Raises
    ------
    ValueError
        If a block without tokens on this side has a sum other than 0: it would be lost.
    """
    row = _one_a_block(np.asarray(sums, dtype=np.float64), bounds)
    count = np.diff(bounds)
    if np.any(row[..., count == 0] != 0):
        raise ValueError(
            "sums is not 0 on a block without tokens on this side (an EOS that only the other side "
            "has); expected both sides to end alike, or that block's sum to be set apart"
        )
    weight = np.ones(bounds[-1])
    if lengths is not None:
        weight = np.asarray(lengths, dtype=np.float64)[: bounds[-1]]
        weight = np.where(broadcast(block_sum(weight, bounds) == 0, bounds), 1.0, weight)
    return broadcast(row, bounds) * (weight / broadcast(block_sum(weight, bounds), bounds))


def _filled(shape: tuple[int, ...], bounds: Integers, /) -> tuple[Integers, Mask]:
    """First tokens of the blocks that have any (reduceat misreads the others), and which do."""
    if not shape or shape[-1] < bounds[-1]:
        raise ValueError(
            f"values has shape {shape}; expected one value for each of {bounds[-1]} tokens"
        )
    filled = np.diff(bounds) > 0
    return bounds[:-1][filled], filled


def _one_a_block(values: NDArray[Any], bounds: Integers, /) -> NDArray[Any]:
    if values.ndim == 0 or values.shape[-1] != bounds.size - 1:
        raise ValueError(
            f"values has shape {values.shape}; expected one value for each of "
            f"{bounds.size - 1} blocks"
        )
    return values
