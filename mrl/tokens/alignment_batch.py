"""Alignment of many responses in one pass: what `mrl.tokens.alignment.align` gives each alone.

The responses of a batch stand one after another in one bitmap, so the cost a token does not grow
as responses get short. Source: docs/tokens.md.

Shapes: R responses, n blocks of all of them, n + R block edges.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mrl.tokens.alignment import Partial, check_cut, check_partial, check_sizes, whole_numbers
from mrl.tokens.blocks import Blocks, Integers, Mask, block_sum

Side = Literal["a", "b"]


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """Aligned blocks of many responses, whose tokens lie one after another on either side.

    Parameters
    ----------
    a, b : ndarray of int, shape (n+R,)
        Token boundaries of the blocks; each response has one more than it has blocks.
    size : ndarray of int, shape (n,)
        Bytes in each block; 0 for EOS blocks.
    first : ndarray of int, shape (R+1,)
        First boundary of each response in `a` and `b`.
    tokens : ndarray of int, shape (R+1, 2)
        First token of each response on either side.
    """

    a: Integers
    b: Integers
    size: Integers
    first: Integers
    tokens: Integers

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def first_block(self) -> Integers:
        """First block of each response, shape (R+1,)."""
        return self.first - np.arange(len(self.first))

    @property
    def dropped(self) -> Integers:
        """Tokens after the last block on either side, shape (R, 2); see ``partial="drop"``."""
        last = np.stack([self.a, self.b], axis=-1)[self.first[1:] - 1]
        return self.tokens[1:] - last

    @property
    def one_to_one(self) -> Mask:
        """Which blocks are one token on either side, shape (n,)."""
        alike = (np.diff(self.a) == 1) & (np.diff(self.b) == 1)
        return alike[_inside(self.first)]

    def blocks(self, row: int, /) -> Blocks:
        """Blocks of one response, its tokens counted from 0."""
        edges = slice(self.first[row], self.first[row + 1])
        start_a, start_b = self.tokens[row]
        inner = slice(*self.first_block[row : row + 2])
        dropped_a, dropped_b = self.dropped[row].tolist()
        a, b = self.a[edges] - start_a, self.b[edges] - start_b
        return Blocks(a, b, self.size[inner], (dropped_a, dropped_b))

    def sums(self, values: ArrayLike, side: Side, /) -> NDArray[np.float64]:
        """`block_sum` of every response.

        Parameters
        ----------
        values : array_like, shape (..., tokens of the side)
            One value a token, the responses one after another.
        side : {"a", "b"}
            Whose tokens these are.

        Returns
        -------
        ndarray, shape (..., n)
        """
        edges = self.a if side == "a" else self.b
        if not len(edges):
            return np.zeros((*np.shape(values)[:-1], 0))
        return block_sum(values, edges)[..., _inside(self.first)]

    def owners(self, side: Side, /) -> list[Integers]:
        """Block of each token, counted from 0 in its response: R arrays, dropped tokens left out.

        Parameters
        ----------
        side : {"a", "b"}
            Whose tokens are asked for.
        """
        widths = np.diff(self.a if side == "a" else self.b)[_inside(self.first)]
        counts = np.diff(self.first_block)
        number = np.arange(len(self.size)) - np.repeat(self.first_block[:-1], counts)
        owner = np.repeat(number, widths)
        kept = (np.diff(self.tokens, axis=0) - self.dropped)[:, "ab".index(side)]
        return np.split(owner, kept.cumsum()[:-1]) if len(self) else []


def align_batch(
    lengths_a: ArrayLike,
    counts_a: ArrayLike,
    lengths_b: ArrayLike,
    counts_b: ArrayLike,
    *,
    eos: tuple[ArrayLike, ArrayLike] = (False, False),
    partial: Partial = "error",
) -> BlockBatch:
    """Align many responses in one pass; each gets the blocks it would get alone.

    Parameters
    ----------
    lengths_a, lengths_b : array_like of int, shapes (tokens of the side,)
        Bytes of each token, the responses one after another.
    counts_a, counts_b : array_like of int, shape (R,)
        Tokens of each response.
    eos : (array_like of bool, array_like of bool), shapes (R,) or ()
        Whether the last token of a response is its EOS, on either side.
    partial : {"error", "drop"}
        See `align`.

    Raises
    ------
    ValueError
        As `align` does, and if counts do not fit the lengths or one another.
    """
    a = _Side.of("a", lengths_a, counts_a, eos[0])
    b = _Side.of("b", lengths_b, counts_b, eos[1])
    if len(a.counts) != len(b.counts):
        raise ValueError(
            f"counts_a has {len(a.counts)} responses and counts_b {len(b.counts)}; expected the "
            "same responses on both sides"
        )
    check_partial(partial)
    for row in np.flatnonzero(a.totals != b.totals):
        ended = bool(a.eos[row] or b.eos[row])
        check_cut(int(a.totals[row]), int(b.totals[row]), ended, partial, where=f" in row {row}")
    return _align(a, b)


@dataclass(frozen=True, eq=False)
class _Side:
    """Checked token lengths of one side; an EOS has one byte here, set apart after the text."""

    lengths: Integers
    counts: Integers
    eos: Mask
    totals: Integers

    @classmethod
    def of(cls, side: str, lengths: ArrayLike, counts: ArrayLike, eos: ArrayLike, /) -> "_Side":
        row = whole_numbers(f"lengths_{side}", lengths)
        number = whole_numbers(f"counts_{side}", counts)
        if number.sum() != row.size:
            raise ValueError(
                f"counts_{side} sums to {number.sum()}; expected the {row.size} tokens of "
                f"lengths_{side}"
            )
        flags = np.broadcast_to(np.asarray(eos, dtype=bool), number.shape)
        if (number < 0).any() or (flags & (number == 0)).any():
            raise ValueError(
                f"counts_{side} holds {number.min()}; expected counts >= 0, and at least 1 where "
                "`eos` names an EOS"
            )
        if flags.any():
            row = row.copy()
            row[number.cumsum()[flags] - 1] = 1
        check_sizes(f"lengths_{side}", row)
        totals = np.zeros(len(number), np.int64)
        filled = number > 0
        if row.size:
            totals[filled] = np.add.reduceat(row, (number.cumsum() - number)[filled])
        return cls(row, number, flags, totals - flags)

    def ends(self, places: Integers, /) -> Integers:
        """Last byte of each token in the bitmap, where response r starts after ``places[r]``."""
        filled = self.counts > 0
        starts, first = (self.counts.cumsum() - self.counts)[filled], places[filled]
        through = (self.totals + self.eos)[filled]
        steps = self.lengths.copy()
        # From the end of a response to the start of the next one.
        steps[starts] += np.diff(first + through, prepend=0) - through
        return np.cumsum(steps, out=steps)


def _align(a: _Side, b: _Side, /) -> BlockBatch:
    ended = a.eos | b.eos
    # In the bitmap each response has a byte for its start, its text, and one for an EOS.
    width = np.maximum(a.totals, b.totals) + 1 + ended
    places = width.cumsum() - width
    ends_a, ends_b = a.ends(places), b.ends(places)
    common, other = np.zeros(int(width.sum()), bool), np.zeros(int(width.sum()), bool)
    common[ends_a] = True
    other[ends_b] = True
    common &= other
    common[places] = False  # leading zero-width tokens end no block
    bounds_a, bounds_b = _ending_at(common, ends_a), _ending_at(common, ends_b)
    stops = np.stack([a.counts.cumsum(), b.counts.cumsum()], axis=-1)
    starts = stops - np.stack([a.counts, b.counts], axis=-1)
    # Each response starts with an edge. One more ends it where no byte is common to both sides:
    # after an EOS that only one of them has, and after zero-width tokens without text.
    empty = (width == 1) & ((a.counts > 0) | (b.counts > 0))
    by_hand = np.stack([np.ones_like(ended), (a.eos != b.eos) | empty], axis=-1)
    upto = np.searchsorted(bounds_a, stops[:, 0], side="right")
    index = np.stack([upto, upto], axis=-1)
    index[1:, 0], index[:1, 0] = upto[:-1], 0
    at = np.stack([places, places + width - 1], axis=-1)
    extra = (index[by_hand], at[by_hand], *np.stack([starts, stops], axis=1)[by_hand].T)
    found, edges_a, edges_b = _merged(extra, (ends_a[bounds_a - 1], bounds_a, bounds_b))
    first = np.zeros(len(upto) + 1, np.int64)
    first[1:] = upto + by_hand.sum(-1).cumsum()
    size = (found[1:] - found[:-1])[_inside(first)]
    size[(first - np.arange(len(first)))[1:][ended] - 1] = 0  # what an EOS took in the bitmap
    return BlockBatch(edges_a, edges_b, size, first, np.concatenate([[[0, 0]], stops]))


def _merged(extra: tuple[Integers, ...], found: tuple[Integers, ...], /) -> tuple[Integers, ...]:
    """Put the columns of `extra` after the first, which says where, between those of `found`."""
    index, *columns = extra
    places = index + np.arange(len(index))
    kept = np.ones(len(found[0]) + len(index), bool)
    kept[places] = False
    out = tuple(np.empty(len(kept), np.int64) for _ in found)
    for row, new, old in zip(out, columns, found, strict=True):
        row[places] = new
        row[kept] = old
    return out


def _inside(first: Integers, /) -> Mask:
    """Which pairs of neighbouring edges hold a block; the others part two responses."""
    inside = np.ones(max(int(first[-1]) - 1, 0), bool)
    inside[first[1:-1] - 1] = False
    return inside


def _ending_at(common: Mask, ends: Integers, /) -> Integers:
    """Token boundaries at common positions; zero-width tokens join the block they follow."""
    at = common[ends]
    at[:-1] &= ends[1:] != ends[:-1]
    return np.flatnonzero(at) + 1
