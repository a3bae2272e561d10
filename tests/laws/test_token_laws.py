"""Laws of moving text between vocabularies: faithful or refused, canonical, and consistent."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import LINES, fast, processor, unigram, word_piece
from tokenizers import Tokenizer, normalizers

from mrl.tokens import (
    ContentEncoder,
    Unrepresentable,
    align,
    block_sum,
    is_canonical,
    is_canonical_batch,
    retokenize,
    retokenize_batch,
)
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer

ALPHABET = "abcdefghijrt= "
TRIPLES = ["".join(letters) for letters in itertools.permutations("abcdefghij", 3)]
TASK_TEXT = [text for s in TRIPLES for text in (f"t {s}=", s[1:] + s[0], f"r {s}=", s[::-1])]


def composing() -> Tokenizer:
    tokenizer = bpe_tokenizer(["caf\u00e9 na\u00efve"], 262, byte_level=True).backend_tokenizer
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


CHARACTERS = ContentEncoder.of(character_tokenizer(ALPHABET))
PLAIN_BPE = ContentEncoder.of(bpe_tokenizer(TASK_TEXT, 160))
BYTE_LEVEL = ContentEncoder.of(
    bpe_tokenizer([*TASK_TEXT, "\u00e9\u00e9 x\r\n"], 400, byte_level=True)
)
COMPOSING = ContentEncoder.of(composing())
METASPACE = ContentEncoder.of(fast(legacy=False))
PREPENDING = ContentEncoder.of(fast(legacy=True))
SENTENCEPIECE = ContentEncoder.of(processor())
PREFIXED = [METASPACE, PREPENDING, SENTENCEPIECE]
LOSING = [ContentEncoder.of(unigram()), ContentEncoder.of(word_piece())]
ENCODERS = [CHARACTERS, PLAIN_BPE, BYTE_LEVEL, COMPOSING, *PREFIXED]

anyone = st.sampled_from([*ENCODERS, *LOSING])
task_text = st.text(ALPHABET, max_size=12)
spelled = st.sampled_from(
    ["<eos>", "a<pad>", "e\u0301", "</s>", "<0x41>", "\u2581", "[CLS]", *LINES]
)
texts = st.one_of(task_text, st.text(max_size=20), st.text("thecad ", max_size=12), spelled)
responses = st.one_of(texts.map(str.encode), st.binary(max_size=12))


@given(responses, anyone)
def test_a_response_keeps_every_byte_or_is_refused(response, encoder):
    (result,) = retokenize_batch([response], encoder)
    if isinstance(result, Unrepresentable):
        assert result.reason in {"invalid UTF-8", "outside the vocabulary", "bytes changed"}
        with pytest.raises(Unrepresentable, match=result.reason):
            retokenize(response, encoder)
    else:
        assert encoder.table.bytes_of(result) == response
        assert not encoder.table.control & set(result.tolist())


@given(responses)
def test_a_byte_level_vocabulary_refuses_only_what_is_not_utf8(response):
    (result,) = retokenize_batch([response], BYTE_LEVEL)
    valid = response.decode(errors="replace").encode() == response
    assert isinstance(result, Unrepresentable) != valid


@given(texts)
def test_a_character_vocabulary_refuses_exactly_what_leaves_its_alphabet(text):
    (result,) = retokenize_batch([text.encode()], CHARACTERS)
    assert isinstance(result, Unrepresentable) == bool(set(text) - set(ALPHABET))


@given(st.text(max_size=20))
def test_a_composing_tokenizer_refuses_exactly_what_it_would_change(text):
    (result,) = retokenize_batch([text.encode()], COMPOSING)
    changed = normalizers.NFC().normalize_str(text) != text
    assert isinstance(result, Unrepresentable) == changed


@given(st.text(max_size=20).map(lambda text: text.replace("\u2581", "_")), st.data())
def test_sentencepiece_with_byte_pieces_keeps_all_text_but_its_mark(text, data):
    encoder = data.draw(st.sampled_from(PREFIXED))
    ids = retokenize(text.encode(), encoder)
    assert encoder.table.bytes_of(ids) == text.encode()
    # a slow and two fast pipelines of one model agree
    assert ids.tolist() == processor().encode(text)


@given(task_text, st.sampled_from(ENCODERS))
def test_retokenised_ids_are_canonical_and_moving_back_changes_nothing(text, encoder):
    ids = retokenize(text.encode(), encoder)
    assert is_canonical(ids, encoder)
    np.testing.assert_array_equal(retokenize(encoder.table.bytes_of(ids), encoder), ids)
    for other in ENCODERS:
        there = other.table.bytes_of(retokenize(text.encode(), other))
        np.testing.assert_array_equal(retokenize(there, encoder), ids)


@given(st.lists(responses, max_size=6), anyone)
def test_a_batch_gives_what_one_by_one_gives(batch, encoder):
    together = retokenize_batch(batch, encoder)
    assert len(together) == len(batch)
    for result, response in zip(together, batch, strict=True):
        (alone,) = retokenize_batch([response], encoder)
        if isinstance(result, Unrepresentable):
            assert (result.reason, result.detail) == (alone.reason, alone.detail)
        else:
            np.testing.assert_array_equal(result, alone)


@st.composite
def sampled(draw: st.DrawFn) -> tuple[ContentEncoder, list[int]]:
    encoder = draw(anyone)
    return encoder, draw(st.lists(st.integers(0, len(encoder.table) - 1), max_size=10))


@given(sampled(), st.integers(0, 10))
def test_bytes_of_ids_are_additive_and_lengths_count_them(drawn, cut):
    encoder, ids = drawn
    table = encoder.table
    assert table.lengths(ids).sum() == len(table.bytes_of(ids))
    parts = table.bytes_of(ids[:cut]) + table.bytes_of(ids[cut:])
    content = [i for i in ids[cut:] if i not in table.control]
    inside = any(i not in table.control for i in ids[:cut])
    if inside and content and content[0] in table.prefixed:
        # the second segment's own prefix is a space inside the whole
        assert len(table.bytes_of(ids)) == len(parts) + 1
    else:
        assert table.bytes_of(ids) == parts


@given(st.lists(sampled(), max_size=5), anyone)
def test_lengths_of_segments_laid_end_to_end_are_those_of_each(drawn, encoder):
    table = encoder.table
    rows = [np.array([i for i in ids if i < len(table)], dtype=np.int64) for _, ids in drawn]
    starts = np.cumsum([0, *(row.size for row in rows)])[:-1]
    joined = table.lengths_joined(np.concatenate([*rows, np.zeros(0, np.int64)]), starts)
    each = [table.lengths(row) for row in rows]
    np.testing.assert_array_equal(joined, np.concatenate([*each, np.zeros(0, np.int64)]))


@given(sampled())
def test_sampled_ids_are_canonical_exactly_when_their_text_encodes_to_them(drawn):
    encoder, ids = drawn
    text = encoder.table.bytes_of(ids)
    (canonical,) = retokenize_batch([text], encoder)
    sampled_text = ids[:-1] if ids and ids[-1] in encoder.table.control else ids
    same = not isinstance(canonical, Unrepresentable) and canonical.tolist() == sampled_text
    assert is_canonical_batch([ids, [*sampled_text, 1]], encoder).tolist() == [same, same]


@given(task_text)
def test_tokens_of_a_segment_are_consecutive_pieces_of_its_text(text):
    for encoder in ENCODERS:
        table, ids = encoder.table, retokenize(text.encode(), encoder)
        ends = np.cumsum([0, *table.lengths(ids)])
        for n, (i, (begin, end)) in enumerate(zip(ids, itertools.pairwise(ends), strict=True)):
            piece = text.encode()[begin:end]
            dropped = n == 0 and i in table.prefixed
            assert table.pieces[i] == (b" " + piece if dropped else piece)


@given(task_text)
def test_blocks_hold_the_same_bytes_on_both_sides(text):
    rows = [encoder.table.lengths(retokenize(text.encode(), encoder)) for encoder in ENCODERS]
    for a, b in itertools.combinations(rows, 2):
        blocks = align(a, b)
        for lengths, bounds in ((a, blocks.a), (b, blocks.b)):
            ends = np.cumsum([0, *lengths])
            np.testing.assert_array_equal(ends[bounds], blocks.positions)


@given(task_text, st.integers(0, 2**32 - 1))
def test_a_log_prob_summed_over_blocks_is_the_log_prob_of_the_response(text, seed):
    encoder = PLAIN_BPE
    ids = [*retokenize(text.encode(), encoder), 1]
    logprobs = -np.random.default_rng(seed).exponential(size=len(ids))
    receiver = [*retokenize(text.encode(), CHARACTERS), 1]
    blocks = align(encoder.table.lengths(ids), CHARACTERS.table.lengths(receiver), eos=(True, True))
    assert block_sum(logprobs, blocks.a).sum() == pytest.approx(logprobs.sum(), rel=1e-12)
