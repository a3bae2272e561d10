"""Laws of moving text between vocabularies: faithful or refused, canonical, and consistent."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
ENCODERS = [CHARACTERS, PLAIN_BPE, BYTE_LEVEL, COMPOSING]

anyone = st.sampled_from(ENCODERS)
task_text = st.text(ALPHABET, max_size=12)
texts = st.one_of(task_text, st.text(max_size=20), st.sampled_from(["<eos>", "a<pad>", "e\u0301"]))
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


@given(task_text, anyone)
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
    assert table.bytes_of(ids[:cut]) + table.bytes_of(ids[cut:]) == table.bytes_of(ids)
    assert table.lengths(ids).sum() == len(table.bytes_of(ids))


@given(sampled())
def test_sampled_ids_are_canonical_exactly_when_their_text_encodes_to_them(drawn):
    encoder, ids = drawn
    text = encoder.table.bytes_of(ids)
    (canonical,) = retokenize_batch([text], encoder)
    sampled_text = ids[:-1] if ids and ids[-1] in encoder.table.control else ids
    same = not isinstance(canonical, Unrepresentable) and canonical.tolist() == sampled_text
    assert is_canonical_batch([ids, [*sampled_text, 1]], encoder).tolist() == [same, same]


@given(task_text)
def test_blocks_hold_the_same_bytes_on_both_sides(text):
    rows = [(encoder.table, retokenize(text.encode(), encoder)) for encoder in ENCODERS]
    for (table_a, ids_a), (table_b, ids_b) in itertools.combinations(rows, 2):
        blocks = align(table_a.lengths(ids_a), table_b.lengths(ids_b))
        for i in range(len(blocks)):
            spelled = table_a.bytes_of(ids_a[blocks.a[i] : blocks.a[i + 1]])
            assert spelled == table_b.bytes_of(ids_b[blocks.b[i] : blocks.b[i + 1]])
            assert len(spelled) == blocks.size[i]


@given(task_text, st.integers(0, 2**32 - 1))
def test_a_log_prob_summed_over_blocks_is_the_log_prob_of_the_response(text, seed):
    encoder = PLAIN_BPE
    ids = [*retokenize(text.encode(), encoder), 1]
    logprobs = -np.random.default_rng(seed).exponential(size=len(ids))
    receiver = [*retokenize(text.encode(), CHARACTERS), 1]
    blocks = align(encoder.table.lengths(ids), CHARACTERS.table.lengths(receiver), eos=(True, True))
    assert block_sum(logprobs, blocks.a).sum() == pytest.approx(logprobs.sum(), rel=1e-12)
