"""Each text of thl.json under each kind of tokenizer: the same bytes, or refused with a reason."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import real_tokenizers
from tokenizers import Tokenizer, normalizers

from mrl.tokens import (
    ContentEncoder,
    Unrepresentable,
    align,
    block_sum,
    retokenize,
    retokenize_batch,
)
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer

CASES = {
    case["id"]: case
    for case in json.loads(Path(__file__).with_name("thl.json").read_text())["cases"]
}
COMPUTED = {"long": b"ab" * 50_000, "lone-surrogate": "\ud83d".encode("utf-8", "surrogatepass")}
INVALID = {"lone-continuation-byte", "lone-surrogate"}
CHANGED_BY_NFC = {"devanagari-composition-exclusion", "compat-ideograph"}


def response(name: str) -> bytes:
    case = CASES[name]
    if "python" in case:
        return COMPUTED[name]
    return bytes.fromhex(case["bytes_hex"]) if "bytes_hex" in case else case["text"].encode()


# what the small vocabularies are trained on
TEXTS = [response(name).decode() for name in CASES if name not in {*INVALID, "long"}]


def _byte_level() -> Tokenizer:
    return bpe_tokenizer(TEXTS, 290, byte_level=True).backend_tokenizer


def _composing() -> Tokenizer:
    """A byte-level tokenizer that normalises to NFC, as Qwen's do."""
    tokenizer = Tokenizer.from_str(_byte_level().to_str())
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _plain_bpe() -> Tokenizer:
    return bpe_tokenizer(TEXTS, 100, pattern=r"\p{L}+|[\s\S]").backend_tokenizer


def _characters() -> Tokenizer:
    return character_tokenizer("".join(sorted(set("".join(TEXTS))))).backend_tokenizer


MADE = {
    "characters": _characters,
    "plain-bpe": _plain_bpe,
    "byte-level": _byte_level,
    "composing": _composing,
}
NAMES = [*MADE, *real_tokenizers.NAMES]
NFC = {"composing", "qwen"}
MARKS_SPACES = {"mistral-v3"}


@cache
def encoder_of(name: str) -> ContentEncoder:
    if name in MADE:
        return ContentEncoder.of(MADE[name]())
    return real_tokenizers.encoder(name)


@pytest.fixture(params=NAMES)
def encoder(request) -> ContentEncoder:
    return encoder_of(request.param)


def is_here(tokenizer: str) -> bool:
    return tokenizer in MADE or real_tokenizers.is_installed(tokenizer)


def expected_refusal(name: str, tokenizer: str) -> str | None:
    """Why a tokenizer cannot keep a case's bytes; none of them holds U+2581."""
    if name in INVALID:
        return "invalid UTF-8"
    return "bytes changed" if tokenizer in NFC and name in CHANGED_BY_NFC else None


@pytest.mark.parametrize("tokenizer", NAMES)
@pytest.mark.parametrize("name", CASES)
def test_text_keeps_its_bytes_or_is_refused_with_the_right_reason(name, tokenizer):
    encoder, text = encoder_of(tokenizer), response(name)
    refusal = expected_refusal(name, tokenizer)
    if refusal:
        with pytest.raises(Unrepresentable) as caught:
            retokenize(text, encoder)
        assert caught.value.reason == refusal
        return
    ids = retokenize(text, encoder)
    assert encoder.table.bytes_of(ids) == text
    assert encoder.table.lengths(ids).sum() == len(text)
    assert not encoder.table.control & set(ids.tolist())


@pytest.mark.parametrize("name", [name for name in CASES if name not in INVALID])
def test_every_pair_of_tokenizers_aligns_on_whole_tokens(name):
    text = response(name)
    kept = [
        encoder_of(tokenizer)
        for tokenizer in NAMES
        if expected_refusal(name, tokenizer) is None and is_here(tokenizer)
    ]
    rows = {encoder: encoder.table.lengths(retokenize(text, encoder)) for encoder in kept}
    for a in rows.values():
        for b in rows.values():
            blocks = align(a, b)
            np.testing.assert_array_equal(block_sum(a, blocks.a), blocks.size)
            np.testing.assert_array_equal(block_sum(b, blocks.b), blocks.size)


def test_a_text_outside_a_small_alphabet_is_refused_not_cut():
    encoder = ContentEncoder.of(character_tokenizer("abc=42 "))
    representable = {name for name in CASES if set(response(name)) <= set(b"abc=42 ")}
    assert representable == {"boundary-space", "empty", "eos-only", "long"}
    for name in CASES:
        if name in representable:
            assert encoder.table.bytes_of(retokenize(response(name), encoder)) == response(name)
        else:
            with pytest.raises(Unrepresentable):
                retokenize(response(name), encoder)


def test_a_genuine_replacement_character_differs_from_an_invalid_byte(encoder):
    assert encoder.table.bytes_of(retokenize("\ufffd".encode(), encoder)) == b"\xef\xbf\xbd"
    with pytest.raises(Unrepresentable, match="invalid UTF-8: byte 0 of 1"):
        retokenize(b"\x80", encoder)


def test_text_that_spells_an_end_token_does_not_end_the_response():
    for name in ("chatml-as-text", "inst-as-text"):
        assert len(retokenize(response(name), encoder_of("byte-level"))) > 1


@pytest.mark.parametrize("name", real_tokenizers.NAMES)
def test_no_control_token_of_a_published_tokenizer_is_spelled_by_text(name):
    tokenizer, encoder = real_tokenizers.tokenizer(name), real_tokenizers.encoder(name)
    piece = getattr(tokenizer, "id_to_token", None) or tokenizer.id_to_piece
    spellings = [piece(i) for i in sorted(encoder.table.control)]
    assert spellings
    assert {encoder.table.bytes_of([i]) for i in encoder.table.control} == {b""}
    for spelling, ids in zip(
        spellings, retokenize_batch([s.encode() for s in spellings], encoder), strict=True
    ):
        if isinstance(ids, Unrepresentable):
            assert name in MARKS_SPACES
            assert "\u2581" in spelling
        else:
            assert encoder.table.bytes_of(ids) == spelling.encode()
            assert not encoder.table.control & set(ids.tolist())


@pytest.mark.parametrize("name", ["qwen", "deepseek"])
def test_a_think_tag_is_plain_text_though_the_tokenizer_does_not_mark_it_special(name):
    encoder = real_tokenizers.encoder(name)
    tag = real_tokenizers.tokenizer(name).token_to_id("</think>")
    assert encoder.table.bytes_of([tag]) == b"</think>"
    assert tag not in retokenize(response("think-tag"), encoder)


# those that would join prompt and response; SentencePiece puts a prefix before both
MERGE_ACROSS = {
    *(("boundary-space", name) for name in ("deepseek", "mistral-v3", "smollm2")),
    *(("boundary-digits", name) for name in ("deepseek", "llama3", "mistral-v3")),
}


@pytest.mark.parametrize("tokenizer", real_tokenizers.NAMES)
@pytest.mark.parametrize("name", ["boundary-space", "boundary-digits"])
def test_no_merge_crosses_from_prompt_to_response(name, tokenizer):
    encoder = real_tokenizers.encoder(tokenizer)
    prompt, text = CASES[name]["prompt"].encode(), response(name)
    apart = [retokenize(part, encoder) for part in (prompt, text)]
    assert [encoder.table.bytes_of(ids) for ids in apart] == [prompt, text]
    whole = retokenize(prompt + text, encoder)
    merges = (name, tokenizer) in MERGE_ACROSS
    assert (np.concatenate(apart).tolist() != whole.tolist()) == merges


def test_the_receivers_eos_stands_for_the_sources_and_keeps_its_log_prob(encoder):
    ids = retokenize(response("eos-only"), encoder)
    eos = min(encoder.table.control)
    lengths = encoder.table.lengths([*ids, eos])
    blocks = align(lengths, [0], eos=(True, True))
    assert (len(blocks), blocks.size.tolist()) == (1, [0])
    assert block_sum([-1.5], blocks.a).tolist() == [-1.5]


@pytest.mark.parametrize(
    "name", ["byte-level", "composing", "qwen", "deepseek", "llama3", "tekken", "mistral-v3"]
)
def test_these_tokenizers_lack_no_byte(name):
    assert encoder_of(name).table.missing_bytes == b""


def test_a_tokenizer_that_drops_characters_is_recognised_when_loaded():
    tokenizer, table = (
        real_tokenizers.tokenizer("smollm2"),
        real_tokenizers.encoder("smollm2").table,
    )
    assert set(table.missing_bytes) >= real_tokenizers.NO_TOKEN
    lacking = [value for value in table.missing_bytes if value < 0x80]
    assert bytes(lacking) == b"\x04\x06\x13\x14\x16\x1d"
    assert table.losses == ("its vocabulary lacks the bytes 04 06 13 14 16 1D F1 F2",)
    for value in lacking:
        text = f"a{chr(value)}b"
        assert tokenizer.decode(tokenizer.encode(text).ids) == "ab"  # without a word
        with pytest.raises(Unrepresentable, match="outside the vocabulary: byte 1 of 3"):
            retokenize(text.encode(), real_tokenizers.encoder("smollm2"))
