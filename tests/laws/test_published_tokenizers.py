"""Laws of published tokenizers: any text is kept or refused, and ids are the makers' own."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_tokenizers import NAMES, encoder, known_losses, makers_encoder, tokenizer

from mrl.tokens import Unrepresentable, align, is_canonical, retokenize_batch

SPELLED = ["<|im_end|>", "</s>", "[INST]", "<think>", "</think>", "<0xE2>", "\u2581", "\ufffd"]
pieces = st.one_of(
    st.text(max_size=8),
    st.sampled_from([*SPELLED, " ", "  ", "\r\n", "\t", "\x1c", "e\u0301", "'s", "123", "the cat"]),
)
texts = st.lists(pieces, max_size=8).map("".join)
responses = st.one_of(texts.map(str.encode), st.binary(max_size=12))
CODE = [
    "def f(x):\n    return x ** 2  # squares\n",
    "The 3 quick brown foxes (aged 12.5) can't jump over 1,000,000 dogs!",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u3002",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645 \u043f\u0440\u0438\u0432\u0435\u0442",
    "x\t=\t{'a': [1, 2, 3]}\r\n\r\n   \u00a0 y",
]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100, deadline=None)
@given(batch=st.lists(responses, min_size=1, max_size=8))
def test_every_string_is_kept_byte_for_byte_or_refused_for_a_known_loss(name, batch):
    table = encoder(name).table
    for response, ids in zip(batch, retokenize_batch(batch, encoder(name)), strict=True):
        if not isinstance(ids, Unrepresentable):
            assert table.bytes_of(ids) == response
            assert tokenizer(name).decode(ids.tolist()).encode() == response  # another reading
            assert table.lengths(ids).sum() == len(response)
            assert not table.control & set(ids.tolist())
            assert is_canonical(ids, encoder(name))
        else:
            assert ids.reason in known_losses(name, response)


def _plain(name: str, text: str) -> bool:
    """Whether text spells no added token, which the tokenizer itself would take whole."""
    spelled = getattr(tokenizer(name), "get_added_tokens_decoder", dict)().values()
    return not any(token.content in text for token in spelled)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(drawn=st.lists(texts, min_size=1, max_size=8))
def test_ids_are_those_of_the_makers_own_encoder(name, drawn):
    rows = [
        (text, ids.tolist())
        for text, ids in zip(
            [*CODE, *drawn],
            retokenize_batch([text.encode() for text in [*CODE, *drawn]], encoder(name)),
            strict=True,
        )
        if not isinstance(ids, Unrepresentable) and _plain(name, text)
    ]
    assert [ids for _, ids in rows] == makers_encoder(name)([text for text, _ in rows])


@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_blocks_of_every_pair_hold_the_same_bytes_on_both_sides(text):
    rows = []
    for name in NAMES:
        (ids,) = retokenize_batch([text.encode()], encoder(name))
        if not isinstance(ids, Unrepresentable):
            rows.append((encoder(name).table, ids))
    for (table_a, ids_a), (table_b, ids_b) in itertools.combinations(rows, 2):
        blocks = align(table_a.lengths(ids_a), table_b.lengths(ids_b))
        np.testing.assert_array_equal(
            np.cumsum(table_a.lengths(ids_a))[blocks.a[1:] - 1], blocks.positions[1:]
        )
        np.testing.assert_array_equal(
            np.cumsum(table_b.lengths(ids_b))[blocks.b[1:] - 1], blocks.positions[1:]
        )


def test_families_that_share_a_vocabulary_file_format_have_their_own_fingerprints():
    prints = {encoder(name).table.fingerprint for name in NAMES}
    assert len(prints) == len(NAMES)


def test_padding_and_truncation_leave_a_fingerprint_as_it_was():
    from tokenizers import Tokenizer

    from mrl.tokens import TokenBytes

    changed = Tokenizer.from_str(tokenizer("smollm2").to_str())
    changed.enable_truncation(5)
    changed.enable_padding(length=9)
    assert TokenBytes.of(changed).fingerprint == encoder("smollm2").table.fingerprint
