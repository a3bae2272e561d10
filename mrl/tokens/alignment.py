"""Alignment of two tokenisations of the same bytes, and what moves across it.

With ``ca = cumsum(lengths_a)`` and ``cb`` likewise, the positions in both are the common
boundaries; the blocks between neighbours are the smallest pieces of text that both sides spell
with whole tokens. Found by a bitmap over byte positions, in linear time.

Log-probs are extensive: summed over a block (`block_sum`) and, where a per-token value is wanted,
shared out again (`apportion`). Advantages are intensive: repeated over a block (`broadcast`).
Masks hold for a block where they hold for all of it (`block_all`).
Source: docs/tokens.md.
"""

from dataclasses import dataclass
from typing import Any, Literal

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


def align(
    lengths_a: ArrayLike,
    lengths_b: ArrayLike,
    *,
    eos: tuple[bool, bool] = (False, False),
    partial: Literal["error", "drop"] = "error",
) -> Blocks:
    """Blocks between the common boundaries of two tokenisations of the same bytes.

    Parameters
    ----------
    lengths_a, lengths_b : array_like of int, shapes (n_a,) and (n_b,)
        Bytes of each token, in order; 0 for control tokens.
    eos : (bool, bool)
        Whether the last token of either side is its EOS. These tokens form one zero-byte block
        at the end, alone on its side if only one side has one; their lengths are not read.
    partial : {"error", "drop"}
        What to do where the totals differ, as they do when one side was cut inside a character:
        raise, or leave out the unfinished last block and count its tokens in `Blocks.dropped`.

    Returns
    -------
    Blocks
        Zero-width tokens belong to the block that ends where they stand, leading ones to the
        first block.

    Raises
    ------
    ValueError
        If lengths are not one row of whole numbers >= 0, a named EOS is not there, or the totals
        differ (with ``partial="drop"``: only when an EOS says that a side is complete).
    """
    if partial not in ("error", "drop"):
        raise ValueError(f"partial={partial!r} is not allowed; expected 'error' or 'drop'")
    a, b = _lengths("lengths_a", lengths_a, eos[0]), _lengths("lengths_b", lengths_b, eos[1])
    ends_a, ends_b = a.cumsum(), b.cumsum()
    total_a, total_b = (int(ends[-1]) if ends.size else 0 for ends in (ends_a, ends_b))
    if total_a != total_b:
        _check_cut(total_a, total_b, eos, partial)
    bounds_a, bounds_b, positions = _common(ends_a, ends_b, max(total_a, total_b))
    if any(eos):  # equal totals: the last boundary is the end of the text on both sides
        bounds_a = np.append(bounds_a, a.size + bool(eos[0]))
        bounds_b = np.append(bounds_b, b.size + bool(eos[1]))
        positions = np.append(positions, positions[-1])
    elif total_a == total_b == 0 and (a.size or b.size):
        # No byte to end a block at: zero-width tokens alone form one block.
        bounds_a, bounds_b, positions = (np.array([0, n]) for n in (a.size, b.size, 0))
    dropped = (max(0, int(a.size - bounds_a[-1])), max(0, int(b.size - bounds_b[-1])))
    return Blocks(bounds_a, bounds_b, positions[1:] - positions[:-1], dropped)


def _lengths(name: str, lengths: ArrayLike, eos: bool, /) -> Integers:
    """Check byte lengths and take off a named EOS."""
    row: NDArray[Any] = np.asarray(lengths)
    if row.ndim != 1 or not (row.size == 0 or row.dtype.kind in "iu"):
        raise ValueError(
            f"{name} has shape {row.shape} and type {row.dtype}; expected one row of whole "
            "numbers, as TokenBytes.lengths gives"
        )
    if eos and row.size == 0:
        raise ValueError(f"{name} is empty; expected at least the EOS that `eos` names")
    row = row[: row.size - bool(eos)].astype(np.int64, copy=False)
    if row.size and row.min() < 0:
        raise ValueError(f"{name} holds {row.min()}; expected byte lengths >= 0")
    return row


def _check_cut(total_a: int, total_b: int, eos: tuple[bool, bool], partial: str, /) -> None:
    """Raise unless totals that differ can be a response cut inside a character."""
    got = f"lengths_a sums to {total_a} bytes and lengths_b to {total_b}"
    if partial == "error":
        raise ValueError(
            f"{got}; expected two tokenisations of the same bytes "
            "(partial='drop' leaves out the unfinished end of a truncated response)"
        )
    if any(eos):
        raise ValueError(
            f"{got}, with an EOS; expected equal totals: a response that ended with EOS was not "
            "truncated"
        )


def _common(
    ends_a: Integers, ends_b: Integers, total: int, /
) -> tuple[Integers, Integers, Integers]:
    """Token boundaries on both sides and byte positions of the common boundaries, with 0 first."""
    in_a, in_b = np.zeros(total + 1, bool), np.zeros(total + 1, bool)
    in_a[ends_a] = True
    in_b[ends_b] = True
    in_a &= in_b
    in_a[0] = False  # leading zero-width tokens end no block
    bounds_a, bounds_b = _ending_at(in_a, ends_a), _ending_at(in_a, ends_b)
    positions = np.zeros_like(bounds_a)
    positions[1:] = ends_a[bounds_a[1:] - 1]
    return bounds_a, bounds_b, positions


def _ending_at(common: Mask, ends: Integers, /) -> Integers:
    """Token boundaries at common positions; zero-width tokens join the block they follow."""
    at = common[ends]
    at[:-1] &= ends[1:] != ends[:-1]
    last = at.nonzero()[0]
    bounds = np.zeros(last.size + 1, np.int64)
    np.add(last, 1, out=bounds[1:])
    return bounds


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
