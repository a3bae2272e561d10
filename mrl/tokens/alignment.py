"""Alignment of two tokenisations of the same bytes.

With ``ca = cumsum(lengths_a)`` and ``cb`` likewise, the positions in both are the common
boundaries; the blocks between neighbours are the smallest pieces of text that both sides spell
with whole tokens. Found by a bitmap over byte positions, in linear time. Many responses at once:
`mrl.tokens.alignment_batch`, held to this by a test. Source: docs/tokens.md.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mrl.tokens.blocks import Blocks, Integers, Mask

Partial = Literal["error", "drop"]


def align(
    lengths_a: ArrayLike,
    lengths_b: ArrayLike,
    *,
    eos: tuple[bool, bool] = (False, False),
    partial: Partial = "error",
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
    check_partial(partial)
    a, b = _lengths("lengths_a", lengths_a, eos[0]), _lengths("lengths_b", lengths_b, eos[1])
    ends_a, ends_b = a.cumsum(), b.cumsum()
    total_a, total_b = (int(ends[-1]) if ends.size else 0 for ends in (ends_a, ends_b))
    if total_a != total_b:
        check_cut(total_a, total_b, any(eos), partial)
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
    row = whole_numbers(name, lengths)
    if eos and row.size == 0:
        raise ValueError(f"{name} is empty; expected at least the EOS that `eos` names")
    row = row[: row.size - bool(eos)]
    check_sizes(name, row)
    return row


def whole_numbers(name: str, values: ArrayLike, /) -> Integers:
    """Return one row of whole numbers as int64, or raise ``ValueError``."""
    row: NDArray[Any] = np.asarray(values)
    if row.ndim != 1 or not (row.size == 0 or row.dtype.kind in "iu"):
        raise ValueError(
            f"{name} has shape {row.shape} and type {row.dtype}; expected one row of whole "
            "numbers, as TokenBytes.lengths gives"
        )
    return row.astype(np.int64, copy=False)


def check_sizes(name: str, row: Integers, /) -> None:
    """Raise ``ValueError`` for a byte length below 0."""
    if row.size and row.min() < 0:
        raise ValueError(f"{name} holds {row.min()}; expected byte lengths >= 0")


def check_partial(partial: str, /) -> None:
    """Raise ``ValueError`` unless `partial` is a known way with differing totals."""
    if partial not in ("error", "drop"):
        raise ValueError(f"partial={partial!r} is not allowed; expected 'error' or 'drop'")


def check_cut(
    total_a: int, total_b: int, ended: bool, partial: Partial, /, *, where: str = ""
) -> None:
    """Raise unless totals that differ can be a response cut inside a character."""
    got = f"lengths_a sums to {total_a} bytes and lengths_b to {total_b}{where}"
    if partial == "error":
        raise ValueError(
            f"{got}; expected two tokenisations of the same bytes "
            "(partial='drop' leaves out the unfinished end of a truncated response)"
        )
    if ended:
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
