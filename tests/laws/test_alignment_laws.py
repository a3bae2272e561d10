"""Laws of aligning two tokenisations of the same bytes."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrl.tokens import TokenBytes, align, align_batch, apportion, block_sum, broadcast
from mrl.tokens.recipes import bpe_tokenizer


def tokenisations(total: int, sides: int) -> st.SearchStrategy:
    """`sides` rows of token lengths >= 1 that each sum to `total`."""
    cuts = st.sets(st.integers(1, max(total - 1, 1)), max_size=total)
    return st.tuples(*[cuts.map(lambda chosen: _lengths(chosen, total))] * sides)


def _lengths(cuts: set[int], total: int) -> list[int]:
    inner = sorted(cut for cut in cuts if cut < total)
    return np.diff([0, *inner, total]).tolist() if total else []


def sides(number: int) -> st.SearchStrategy:
    return st.integers(0, 60).flatmap(lambda total: tokenisations(total, number))


def with_zero_width(row: list[int], places: list[int]) -> list[int]:
    row = list(row)
    for place in places:
        row.insert(place % (len(row) + 1), 0)
    return row


PAIRS = sides(2)
PLACES = st.lists(st.integers(0, 100), max_size=4)
ZERO_WIDTH_PAIRS = st.tuples(PAIRS, PLACES, PLACES).map(
    lambda drawn: (with_zero_width(drawn[0][0], drawn[1]), with_zero_width(drawn[0][1], drawn[2]))
)


def ends(lengths: list[int]) -> set[int]:
    return {0, *np.cumsum(lengths).tolist()}


@given(ZERO_WIDTH_PAIRS)
def test_blocks_partition_both_sides_into_the_same_bytes(pair):
    blocks = align(*pair)
    for lengths, bounds in zip(pair, (blocks.a, blocks.b), strict=True):
        assert bounds[0] == 0
        assert bounds[-1] == len(lengths)
        assert (np.diff(bounds) >= 0).all()
        np.testing.assert_array_equal(block_sum(lengths, bounds), blocks.size)
    assert blocks.dropped == (0, 0)


@given(ZERO_WIDTH_PAIRS)
def test_blocks_are_as_small_as_whole_tokens_allow(pair):
    lengths_a, lengths_b = pair
    blocks = align(lengths_a, lengths_b)
    assert set(blocks.positions.tolist()) == ends(lengths_a) & ends(lengths_b)


@given(ZERO_WIDTH_PAIRS, st.integers(0, 2**32 - 1))
def test_mass_is_conserved(pair, seed):
    rng = np.random.default_rng(seed)
    blocks = align(*pair)
    for lengths, bounds in zip(pair, (blocks.a, blocks.b), strict=True):
        logprobs = -rng.exponential(size=len(lengths))
        assert block_sum(logprobs, bounds).sum() == pytest.approx(logprobs.sum(), rel=1e-12)


def test_block_sums_keep_their_digits_far_into_a_long_text():
    values = np.full(10**6, -0.1)
    values[-1] = -1e-9
    blocks = align(np.ones(10**6, int), np.ones(10**6, int))
    assert block_sum(values, blocks.a)[-1] == -1e-9


@given(sides(1))
def test_a_tokenisation_aligned_with_itself_is_one_to_one(rows):
    (lengths,) = rows
    blocks = align(lengths, lengths)
    assert len(blocks) == len(lengths)
    assert blocks.one_to_one.all()
    np.testing.assert_array_equal(blocks.size, lengths)


@given(ZERO_WIDTH_PAIRS)
def test_swapping_the_sides_transposes_the_blocks(pair):
    forward, backward = align(*pair), align(*pair[::-1])
    np.testing.assert_array_equal(forward.a, backward.b)
    np.testing.assert_array_equal(forward.b, backward.a)
    np.testing.assert_array_equal(forward.size, backward.size)


@given(sides(3))
def test_blocks_of_a_and_c_refine_the_boundaries_common_through_b(rows):
    a, b, c = rows
    through = set(align(a, b).positions.tolist()) & set(align(b, c).positions.tolist())
    assert through <= set(align(a, c).positions.tolist())


@given(PAIRS, st.booleans(), st.booleans())
def test_eos_adds_one_zero_byte_block_and_moves_no_other(pair, eos_a, eos_b):
    plain = align(*pair)
    rows = [[*row, 0] if has else row for row, has in zip(pair, (eos_a, eos_b), strict=True)]
    blocks = align(*rows, eos=(eos_a, eos_b))
    assert len(blocks) == len(plain) + (eos_a or eos_b)
    n = len(plain)
    np.testing.assert_array_equal(blocks.a[: n + 1], plain.a)
    np.testing.assert_array_equal(blocks.b[: n + 1], plain.b)
    assert blocks.size[n:].sum() == 0
    assert (blocks.a[-1], blocks.b[-1]) == tuple(len(row) for row in rows)


@given(ZERO_WIDTH_PAIRS, st.booleans(), st.integers(0, 2**32 - 1))
def test_apportioned_shares_add_up_to_the_block_again(pair, by_bytes, seed):
    blocks = align(*pair)
    sums = -np.random.default_rng(seed).exponential(size=len(blocks))
    sums[np.diff(blocks.b) == 0] = 0  # a sum that no token can carry is an error
    lengths = pair[1] if by_bytes else None
    shares = apportion(sums, blocks.b, lengths=lengths)
    assert shares.shape == (len(pair[1]),)
    np.testing.assert_allclose(block_sum(shares, blocks.b), sums, rtol=1e-12)


@given(ZERO_WIDTH_PAIRS, st.integers(0, 2**32 - 1))
def test_a_block_is_kept_exactly_when_all_its_tokens_are(pair, seed):
    rng = np.random.default_rng(seed)
    blocks = align(*pair)
    mask_a, mask_b = (rng.random(len(row)) < 0.7 for row in pair)
    kept = blocks.mask(mask_a, mask_b)
    lost = block_sum(~mask_a, blocks.a) + block_sum(~mask_b, blocks.b)
    np.testing.assert_array_equal(kept, lost == 0)


@given(ZERO_WIDTH_PAIRS)
def test_broadcast_gives_every_token_its_blocks_value(pair):
    blocks = align(*pair)
    owner = broadcast(np.arange(len(blocks)), blocks.a)
    for block in range(len(blocks)):
        assert (owner[blocks.a[block] : blocks.a[block + 1]] == block).all()
    assert owner.shape == (len(pair[0]),)


@given(PAIRS, st.integers(1, 3))
def test_an_end_cut_inside_a_character_costs_only_the_unfinished_block(pair, more):
    whole, other = pair
    cut = [*other, more]
    blocks = align(whole, cut, partial="drop")
    plain = align(whole, other)
    np.testing.assert_array_equal(blocks.positions, plain.positions)
    assert blocks.dropped == (0, 1)
    merged = [*other[:-1], other[-1] + more] if other else [more]
    blocks = align(whole, merged, partial="drop")
    assert set(blocks.positions.tolist()) == ends(whole) & ends(merged)
    assert blocks.dropped == (len(whole) - blocks.a[-1], len(merged) - blocks.b[-1])
    assert blocks.dropped[1] == len(merged) - np.searchsorted(
        np.cumsum(merged), blocks.positions[-1], side="right"
    )


def test_time_grows_with_length_and_not_faster():
    def seconds(n: int) -> float:
        lengths_a, lengths_b = np.full(2 * n, 3), np.full(3 * n, 2)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            align(lengths_a, lengths_b)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(16 * 20_000) < 16 * 8 * seconds(20_000)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[tuple[list[int], list[int], bool, bool]], str]:
    """Rows of a batch: lengths of both sides, with zero-width tokens, EOS, or an unfinished end."""
    rows = []
    partial = draw(st.sampled_from(["error", "drop"]))
    for _ in range(draw(st.integers(0, 5))):
        a, b = draw(ZERO_WIDTH_PAIRS)
        eos_a, eos_b = draw(st.booleans()), draw(st.booleans())
        if partial == "drop" and not (eos_a or eos_b):
            b = [*b, *draw(st.lists(st.integers(1, 3), max_size=2))]
        rows.append(([*a, *[7] * eos_a], [*b, *[0] * eos_b], eos_a, eos_b))
    return rows, partial


@given(batches(), st.integers(0, 2**32 - 1))
def test_a_batch_aligns_each_response_as_it_is_aligned_alone(drawn, seed):
    rows, partial = drawn
    rng = np.random.default_rng(seed)
    sides = [[row[side] for row in rows] for side in (0, 1)]
    flat = [np.array(sum(side, []), dtype=np.int64) for side in sides]
    counts = [[len(row) for row in side] for side in sides]
    values = [rng.normal(size=len(side)) for side in flat]
    eos = ([row[2] for row in rows], [row[3] for row in rows])
    batch = align_batch(flat[0], counts[0], flat[1], counts[1], eos=eos, partial=partial)
    sums = [batch.sums(values[0], "a"), batch.sums(values[1], "b")]
    owners = [batch.owners("a"), batch.owners("b")]
    assert len(batch) == len(owners[0]) == len(rows)
    one_to_one = []
    start = [0, 0]
    for r, (a, b, *has) in enumerate(rows):
        alone, found = align(a, b, eos=tuple(has), partial=partial), batch.blocks(r)
        np.testing.assert_array_equal(found.a, alone.a)
        np.testing.assert_array_equal(found.b, alone.b)
        np.testing.assert_array_equal(found.size, alone.size)
        assert found.dropped == alone.dropped
        assert batch.dropped[r].tolist() == list(alone.dropped)
        one_to_one += alone.one_to_one.tolist()
        blocks = slice(*batch.first_block[r : r + 2])
        for side, bounds in enumerate((alone.a, alone.b)):
            own = values[side][start[side] : start[side] + counts[side][r]]
            np.testing.assert_array_equal(sums[side][blocks], block_sum(own, bounds))
            np.testing.assert_array_equal(owners[side][r], broadcast(np.arange(len(alone)), bounds))
            start[side] += counts[side][r]
    assert batch.one_to_one.tolist() == one_to_one


TEXTS = [
    "the same text, then 1234",
    "na\u00efve \u65e5\u672c\u8a9e \U0001f600\U0001f600",
    "if x:\n        return x\n",
]
TABLES = [
    TokenBytes.of(bpe_tokenizer(TEXTS, size, byte_level=True, pattern=pattern))
    for size, pattern in ((258, r"[\s\S]"), (275, r"\p{L}+|[\s\S]"), (290, r"[\s\S]+"))
]
PIECES = [{piece: index for index, piece in enumerate(table.pieces) if piece} for table in TABLES]
WIDEST = max(len(piece) for pieces in PIECES for piece in pieces)


def spelled(data: bytes, pieces: dict[bytes, int], rng: np.random.Generator) -> list[int]:
    """Some tokenisation of any bytes, valid text or not, canonical or not."""
    ids = []
    while data:
        fitting = [n for n in range(1, WIDEST + 1) if data[:n] in pieces and n <= len(data)]
        size = rng.choice(fitting)
        ids.append(pieces[data[:size]])
        data = data[size:]
    return ids


byte_strings = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.lists(st.sampled_from(TEXTS), max_size=3).map(lambda parts: "".join(parts).encode()),
)


@given(byte_strings, st.integers(0, 2**32 - 1))
def test_any_two_tokenisations_of_any_bytes_obey_the_laws(data, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for table, pieces in zip(TABLES, PIECES, strict=True):
        ids = spelled(data, pieces, rng)
        assert table.bytes_of(ids) == data
        rows.append(table.lengths(ids))
    for a in rows:
        assert align(a, a).one_to_one.all()
        for b in rows:
            blocks, swapped = align(a, b), align(b, a)
            assert set(blocks.positions.tolist()) == ends(a) & ends(b)
            np.testing.assert_array_equal(blocks.a, swapped.b)
            logprobs = -rng.exponential(size=len(a))
            moved = block_sum(logprobs, blocks.a)
            assert moved.sum() == pytest.approx(logprobs.sum(), rel=1e-12)
            for c in rows:
                through = set(blocks.positions.tolist()) & set(align(b, c).positions.tolist())
                assert through <= set(align(a, c).positions.tolist())


def test_a_batch_keeps_each_responses_digits_and_mass():
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 400, size=500)
    lengths = np.ones(tokens.sum(), np.int64)
    values = -rng.exponential(size=len(lengths)) * 10.0 ** rng.integers(-9, 9, size=len(lengths))
    batch = align_batch(lengths, tokens, lengths, tokens)
    sums = batch.sums(values, "a")
    np.testing.assert_array_equal(sums, values)
    assert sums.sum() == pytest.approx(values.sum(), rel=1e-12)
