"""The byte table, the families it recognises, and the content-only encoder."""

import copy
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from small_tokenizers import processor
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from mrl.errors import InputError
from mrl.tokens import (
    ContentEncoder,
    TokenBytes,
    Unrepresentable,
    UnsupportedTokenizer,
    is_canonical,
    retokenize,
    retokenize_batch,
)
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer
from mrl.tokens.segments import SegmentEncoder

LETTERS = {char: index for index, char in enumerate("abcdefgh ")}


def word_level(**extra: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({**LETTERS, **extra}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return tokenizer


def plain(**options) -> Tokenizer:
    return Tokenizer(models.BPE(dict(LETTERS), [], **options))


def changed(tokenizer: Tokenizer, **parts) -> Tokenizer:
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def byte_level(**options) -> Tokenizer:
    pre = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})
    vocabulary = {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    return changed(
        Tokenizer(models.BPE(vocabulary, [])), pre_tokenizer=pre, decoder=decoders.ByteLevel()
    )


def named(module: str, name: str, **attributes):
    return type(name, (), {"__module__": module, **attributes})()


UNSUPPORTED = {
    "one-sided mark for spaces": lambda: changed(plain(), decoder=decoders.Replace("_", " ")),
    "one-sided mark.*writes": lambda: changed(
        plain(),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Fuse(),
    ),
    "byte-level with a mark": lambda: changed(
        byte_level(),
        normalizer=normalizers.Replace(" ", "_"),
        decoder=decoders.Sequence([decoders.Replace("_", " "), decoders.ByteLevel()]),
    ),
    "pieces joined by BPEDecoder": lambda: changed(plain(), decoder=decoders.BPEDecoder()),
    "pieces joined by CTC": lambda: changed(plain(), decoder=decoders.CTC()),
    "pieces joined by Strip": lambda: changed(plain(), decoder=decoders.Strip("_", 1, 0)),
    "pieces joined by WordPiece": lambda: changed(plain(), decoder=decoders.WordPiece()),
    "pieces joined by Replace": lambda: changed(plain(), decoder=decoders.Replace("a", "b")),
    "text put before every text": lambda: changed(plain(), normalizer=normalizers.Prepend("a")),
    "words split by Whitespace": lambda: changed(
        plain(), pre_tokenizer=pre_tokenizers.Whitespace()
    ),
    "words split by Split": lambda: changed(
        plain(),
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed")]),
    ),
    "word marks": lambda: plain(end_of_word_suffix="</w>"),
    "dropout": lambda: plain(dropout=0.1),
    "prefix space": lambda: byte_level(add_prefix_space=True),
    "one-sided byte alphabet": lambda: changed(plain(), decoder=decoders.ByteLevel()),
    "slow SentencePiece tokenizer": lambda: named("models", "Slow", sp_model=None),
    "Tekken object": lambda: named("mistral_common.tekken", "Tekkenizer"),
    "tiktoken object": lambda: named("tiktoken.core", "Encoding"),
    "not a fast tokenizer": lambda: object(),
}


@pytest.mark.parametrize("family", UNSUPPORTED)
def test_other_families_are_refused_by_name(family):
    with pytest.raises(UnsupportedTokenizer, match=family) as caught:
        TokenBytes.of(UNSUPPORTED[family]())
    assert isinstance(caught.value, InputError)
    with pytest.raises(UnsupportedTokenizer):
        retokenize(b"a", UNSUPPORTED[family]())


def test_byte_level_pieces_spell_all_256_bytes():
    table = TokenBytes.of(byte_level())
    assert {table.bytes_of([i]) for i in range(256)} == {bytes([value]) for value in range(256)}
    assert table.missing_bytes == b""


def test_a_byte_that_the_vocabulary_lacks_is_seen_when_the_table_is_made():
    pieces = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"\u010d"})  # carriage return
    lacking = changed(
        Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [])),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
    )
    assert lacking.encode("a\r\n").ids == lacking.encode("a\n").ids  # dropped without a word
    assert TokenBytes.of(lacking).missing_bytes == b"\r"
    with pytest.raises(Unrepresentable, match="outside the vocabulary: byte 1 of 3"):
        retokenize(b"a\r\n", lacking)


def test_control_tokens_have_no_bytes_and_other_added_tokens_spell_themselves():
    tokenizer = word_level()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.add_tokens(["<tool>"])
    table = TokenBytes.of(tokenizer)
    assert table.bytes_of([0, 10, 9]) == b"a<tool>"
    assert table.lengths([[0, 10, 9]]).tolist() == [[1, 6, 0]]
    assert table.control == {9}


def test_the_unknown_token_is_a_control_token():
    table = TokenBytes.of(word_level(**{"<unk>": 9}))
    assert table.bytes_of([0, 9, 1]) == b"ab"


def test_text_that_spells_the_unknown_token_is_content():
    vocabulary = {piece: i for i, piece in enumerate([*"unk<>", "<unk>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", ignore_merges=True))  # noqa: S106
    assert retokenize(b"<unk>", tokenizer).tolist() == [vocabulary[char] for char in "<unk>"]


def test_text_that_spells_added_tokens_is_content_on_every_path():
    # such vocabulary entries are found whole where a model looks words up before merging
    vocabulary = dict.fromkeys([*LETTERS, "<", ">", "<bad>", "<ab>"])
    vocabulary = {piece: i for i, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    assert tokenizer.encode("<bad>").tokens == ["<bad>"]
    tokenizer.add_special_tokens(["<bad>"])
    tokenizer.add_tokens(["<ab>"])
    for text in ("<bad>", "<ab>"):
        ids = retokenize(text.encode(), tokenizer)
        assert [vocabulary[char] for char in text] == ids.tolist()


def test_an_added_token_that_merges_make_stays_an_ordinary_piece():
    tokenizer = Tokenizer(models.BPE({**LETTERS, "ab": 9}, [("a", "b")]))
    tokenizer.add_tokens(["ab", "c"])
    assert retokenize(b"abc", tokenizer).tolist() == [9, 2]


def test_ids_that_name_no_token_are_an_error():
    table = TokenBytes.of(word_level(z=20))
    for ids in ([21], [-1], [0, 15]):
        with pytest.raises(ValueError, match="names no token"):
            table.bytes_of(ids)
        with pytest.raises(ValueError, match="names no token"):
            table.lengths(ids)
    with pytest.raises(ValueError, match="whole numbers"):
        table.lengths([0.5])


def test_an_empty_segment_has_no_bytes():
    table = TokenBytes.of(word_level())
    assert table.bytes_of([]) == b""
    assert table.lengths([]).tolist() == []


def test_the_fingerprint_tells_apart_all_that_moves_ids():
    def merged(merges) -> Tokenizer:
        return Tokenizer(models.BPE({**LETTERS, "ab": 9, "bc": 10}, merges))

    split = pre_tokenizers.Split(Regex("a"), "isolated")
    special, added = word_level(), word_level()
    special.add_special_tokens(["<x>"])
    added.add_tokens(["<x>"])
    variants = [
        plain(),
        word_level(),
        word_level(z=9),
        merged([("a", "b"), ("b", "c")]),
        merged([("b", "c"), ("a", "b")]),
        changed(plain(), normalizer=normalizers.NFC()),
        changed(plain(), pre_tokenizer=split),
        special,
        added,
    ]
    assert len({TokenBytes.of(variant).fingerprint for variant in variants}) == len(variants)


def test_the_fingerprint_ignores_settings_that_ordinary_calls_change():
    tokenizer = word_level()
    before = TokenBytes.of(tokenizer).fingerprint
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="a $A", special_tokens=[("a", 0)]
    )
    assert TokenBytes.of(tokenizer).fingerprint == before
    assert retokenize(b"abc", tokenizer).tolist() == [0, 1, 2]


def test_the_fingerprint_tells_families_apart_that_differ_in_their_regular_expression_alone():
    texts = ["abab cd 12 345"]
    one = bpe_tokenizer(texts, 260, byte_level=True, pattern=r"\p{L}+|\p{N}|\s+")
    three = bpe_tokenizer(texts, 260, byte_level=True, pattern=r"\p{L}+|\p{N}{1,3}|\s+")
    same = Tokenizer.from_str(one.backend_tokenizer.to_str())
    same.pre_tokenizer = three.backend_tokenizer.pre_tokenizer
    assert same.get_vocab() == one.get_vocab()
    assert TokenBytes.of(same).fingerprint != TokenBytes.of(one).fingerprint


def test_a_wrapper_and_its_backend_are_the_same_tokenizer():
    wrapper = character_tokenizer("abc")
    inside = TokenBytes.of(wrapper.backend_tokenizer)
    assert TokenBytes.of(wrapper).fingerprint == inside.fingerprint
    assert TokenBytes.of(wrapper).pieces == inside.pieces


def test_an_encoder_copies_and_pickles():
    encoder = ContentEncoder.of(bpe_tokenizer(["abab cd"], 10))
    for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):  # noqa: S301
        assert retokenize(b"abab", twin).tolist() == retokenize(b"abab", encoder).tolist()


def test_a_tokenizer_serves_many_threads_while_others_use_it():
    tokenizer = bpe_tokenizer(["abab cd"], 10)
    responses = [b"abab cd" * 50] * 20
    expected = retokenize(responses[0], ContentEncoder.of(tokenizer)).tolist()
    rounds: list[bool] = []

    def work() -> None:
        for _ in range(20):
            got = retokenize_batch(responses, tokenizer)
            rounds.append(all(ids.tolist() == expected for ids in got))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for length in range(1, 50):  # changes the original's truncation while the others encode
        tokenizer(["abab cd"], truncation=True, max_length=length)
    for thread in threads:
        thread.join()
    assert rounds == [True] * 80


@pytest.mark.parametrize("kind", ["fast", "wrapped", "sentencepiece"])
def test_one_tokenizer_object_serves_eight_threads(kind):
    responses = [f"abab cd {i}".encode() for i in range(40)] + [b"\xff", "\u20ac".encode()] * 5
    tokenizer = bpe_tokenizer(["abab cd 0123456789"], 264, byte_level=True)
    if kind == "fast":
        tokenizer = tokenizer.backend_tokenizer
    elif kind == "sentencepiece":
        tokenizer = processor()

    def written(results):
        return [str(r) if isinstance(r, Unrepresentable) else r.tolist() for r in results]

    expected = written(retokenize_batch(responses, ContentEncoder.of(tokenizer)))
    together = threading.Barrier(8)

    def work(_: int) -> bool:
        together.wait()  # the first to come builds the encoder, the others wait for it
        rounds = [written(retokenize_batch(responses, tokenizer)) == expected for _ in range(20)]
        alone = [str(retokenize(b"abab", tokenizer).tolist()) for _ in range(20)]
        return all(rounds) and len(set(alone)) == 1

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_tokens_added_later_are_seen_by_functions_that_take_a_tokenizer():
    tokenizer = word_level()
    assert is_canonical([0, 1], tokenizer)
    tokenizer.add_special_tokens([AddedToken("<eos>")])
    assert is_canonical([0, 1, 9], tokenizer)


def test_a_control_token_inside_a_response_is_never_canonical():
    tokenizer = character_tokenizer("abc")
    assert is_canonical([2, 3, 1], tokenizer)
    assert not is_canonical([2, 1, 3, 1], tokenizer)
    assert not is_canonical([2, 0, 1], tokenizer)


def test_a_response_that_stops_inside_a_character_is_not_canonical():
    tokenizer = byte_level()
    ids = retokenize("\u20ac".encode(), tokenizer)
    assert is_canonical(ids, tokenizer)
    assert not is_canonical(ids[:2], tokenizer)


def test_a_response_must_be_bytes():
    with pytest.raises(TypeError, match=r"type str; expected bytes"):
        retokenize("abc", word_level())


def test_a_refusal_says_where():
    with pytest.raises(Unrepresentable, match=r"outside the vocabulary: byte 2 of 6, b'\\xe2"):
        retokenize("ab\u20acc".encode(), word_level())
    lowered = changed(plain(), normalizer=normalizers.Lowercase())
    with pytest.raises(
        Unrepresentable, match=r"bytes changed: byte 1 of 3, b'BC', encoded as b'bc'"
    ):
        retokenize(b"aBC", lowered)
    stripped = changed(plain(), normalizer=normalizers.Strip())
    with pytest.raises(Unrepresentable, match=r"bytes changed: byte 1 of 2"):
        retokenize(b"a ", stripped)


def test_a_refusal_survives_pickling():
    refusal = pickle.loads(pickle.dumps(Unrepresentable("bytes changed", "byte 1")))  # noqa: S301
    assert (refusal.reason, str(refusal)) == ("bytes changed", "bytes changed: byte 1")


def test_a_batch_keeps_its_order_around_refusals():
    good, bad, last = retokenize_batch([b"ab", b"\xff", b"c"], word_level())
    assert (good.tolist(), last.tolist()) == ([0, 1], [2])
    assert bad.reason == "invalid UTF-8"
    assert good.dtype == np.int64


def test_importing_the_package_needs_no_tokenizer_library():
    code = (
        "import sys, mrl.tokens, mrl.tokens.alignment\n"
        "print([name for name in ('torch', 'transformers', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("ids", [[2.9, 3.0], [True, False], ["2"]])
def test_ids_that_are_no_whole_numbers_are_refused_everywhere(ids):
    encoder = ContentEncoder.of(character_tokenizer("ab"))
    codec = SegmentEncoder(encoder)
    for read in (
        encoder.table.bytes_of,
        lambda row: is_canonical(row, encoder),
        lambda row: codec.canonical_batch([row]),
        codec.lengths,
    ):
        with pytest.raises(ValueError, match="expected whole numbers"):
            read(ids)
