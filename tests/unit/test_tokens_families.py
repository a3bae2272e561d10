"""Families that mark spaces, spell bytes or lose text: SentencePiece, WordPiece, normalisers."""

import pickle

import numpy as np
import pytest
from small_tokenizers import MARK, fast, processor, unigram, word_piece
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from mrl.tokens import (
    ContentEncoder,
    TokenBytes,
    Unrepresentable,
    UnsupportedTokenizer,
    is_canonical,
    retokenize,
    retokenize_batch,
)

sentencepiece = pytest.importorskip("sentencepiece", reason="pip install sentencepiece")
TEXTS = ["the cat", " the cat", "  two", "", " ", "\n\n the", "a\tb\r\n", "cat </s> dog", "<0x41>"]
MODEL_TYPES = ["bpe", "unigram", "char", "word"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("dummy", [True, False])
def test_sentencepiece_models_keep_every_byte(model_type, dummy):
    options = {"byte_fallback": False} if model_type in ("char", "word") else {}
    made = processor(model_type=model_type, add_dummy_prefix=dummy, **options)
    encoder = ContentEncoder.of(made)
    table = encoder.table
    kept = 0
    for text in TEXTS:
        (ids,) = retokenize_batch([text.encode()], encoder)
        if isinstance(ids, Unrepresentable):
            assert not table.family.endswith(("BPE", "Unigram"))
            continue
        kept += 1
        assert table.bytes_of(ids) == text.encode()
        assert ids.tolist() == made.encode(text)
        assert made.decode(ids.tolist()) == text
        assert table.lengths(ids).sum() == len(text.encode())
    assert kept >= 2
    assert bool(table.prefixed) == dummy


def test_the_dummy_prefix_is_dropped_once_and_only_where_a_segment_begins():
    table = TokenBytes.of(processor())
    the = processor().piece_to_id(MARK + "the")
    assert table.bytes_of([the, the]) == b"the the"
    assert table.lengths([the, the]).tolist() == [3, 4]
    eos = processor().eos_id()
    assert table.bytes_of([eos, the]) == b"the"
    assert table.lengths([[eos, the, the], [the, the, eos]]).tolist() == [[0, 3, 4], [3, 4, 0]]
    space_byte = processor().piece_to_id("<0x20>")
    assert table.bytes_of([space_byte, the]) == b"  the"


def test_lengths_of_joined_segments_are_those_of_each():
    table = TokenBytes.of(processor())
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, len(table), size=n) for n in (0, 5, 0, 0, 3, 1, 7, 0)]
    rows.append(np.array([processor().eos_id()]))
    starts = np.cumsum([0, *(row.size for row in rows[:-1])])
    joined = table.lengths_joined(np.concatenate(rows), starts)
    np.testing.assert_array_equal(joined, np.concatenate([table.lengths(row) for row in rows]))
    for row in rows:
        assert table.lengths(row).sum() == len(table.bytes_of(row))


def test_the_mark_itself_cannot_be_text():
    for tokenizer in (processor(), processor(model_type="unigram"), fast(legacy=True)):
        with pytest.raises(Unrepresentable, match="bytes changed: byte 1 of 5"):
            retokenize(f"a{MARK}b".encode(), tokenizer)
        assert any("U+2581" in loss for loss in TokenBytes.of(tokenizer).losses)


def test_text_that_spells_a_byte_piece_or_a_control_piece_is_text():
    for tokenizer in (processor(), fast(legacy=True), fast(legacy=False)):
        table = TokenBytes.of(tokenizer)
        for text in (b"<0x41>", b"</s>", b"<unk>"):
            ids = retokenize(text, tokenizer)
            assert table.bytes_of(ids) == text
            assert not table.control & set(ids.tolist())


def test_a_character_without_a_piece_is_bytes_or_is_refused():
    euro = "\u20ac".encode()
    table = TokenBytes.of(processor())
    assert table.lengths(retokenize(euro, processor())).tolist() == [0, 1, 1, 1]
    assert table.missing_bytes == b""
    small = processor(byte_fallback=False, vocab_size=60)
    with pytest.raises(Unrepresentable, match="outside the vocabulary: byte 1 of 4"):
        retokenize(b"a" + euro, small)
    assert TokenBytes.of(small).losses[0] == "its vocabulary holds some characters only"


def test_user_defined_pieces_are_content_unless_they_mark_turns():
    made = processor(user_defined_symbols=("<turn>", "\n", "  "), vocab_size=340)
    table = TokenBytes.of(made)
    turn = made.piece_to_id("<turn>")
    assert turn in made.encode("cat<turn>dog")
    ids = retokenize(b"cat<turn>dog\n", made)
    assert turn not in ids
    assert table.bytes_of(ids) == b"cat<turn>dog\n"
    assert table.bytes_of([turn]) == b"<turn>"
    assert made.piece_to_id("\n") in ids


def test_a_sentencepiece_normaliser_refuses_what_it_changes():
    made = processor(normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True)
    table = TokenBytes.of(made)
    assert any("nmt_nfkc" in loss for loss in table.losses)
    assert any("extra spaces" in loss for loss in table.losses)
    assert table.bytes_of(retokenize(b"the cat", made)) == b"the cat"
    for text in ("the  cat", "cat ", "\u2460", "\uff21"):
        with pytest.raises(Unrepresentable, match="bytes changed"):
            retokenize(text.encode(), made)


def test_a_processor_whose_marks_end_words_is_refused_by_name():
    with pytest.raises(UnsupportedTokenizer, match=r"SentencePiece BPE.*end words"):
        TokenBytes.of(processor(treat_whitespace_as_suffix=True))


def test_settings_of_a_processor_do_not_reach_its_encoder():
    made = sentencepiece.SentencePieceProcessor(
        model_proto=processor().serialized_model_proto(), add_bos=True, add_eos=True, out_type=str
    )
    assert retokenize(b"the cat", made).tolist() == processor().encode("the cat")
    assert TokenBytes.of(made).fingerprint == TokenBytes.of(processor()).fingerprint


def test_sentencepiece_fingerprints_tell_models_apart():
    variants = [
        processor(),
        processor(model_type="unigram"),
        processor(add_dummy_prefix=False),
        processor(normalization_rule_name="nfkc"),
        processor(user_defined_symbols=("<turn>",)),
        fast(legacy=True),
        fast(legacy=False),
    ]
    assert len({TokenBytes.of(variant).fingerprint for variant in variants}) == len(variants)


def test_a_sentencepiece_encoder_pickles():
    encoder = ContentEncoder.of(processor())
    twin = pickle.loads(pickle.dumps(encoder))  # noqa: S301
    assert retokenize(b"the cat", twin).tolist() == retokenize(b"the cat", encoder).tolist()


@pytest.mark.parametrize("legacy", [True, False])
def test_a_fast_tokenizer_of_a_model_gives_the_models_ids(legacy):
    tokenizer = fast(legacy=legacy)
    for text in TEXTS:
        ids = retokenize(text.encode(), tokenizer)
        assert ids.tolist() == processor().encode(text)
        assert TokenBytes.of(tokenizer).bytes_of(ids) == text.encode()
    assert TokenBytes.of(tokenizer).family == TokenBytes.of(processor()).family


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("scheme", ["first", "always"])
def test_metaspace_tells_text_with_a_leading_space_from_text_without(scheme, split):
    tokenizer = fast(legacy=False, scheme=scheme, split=split)
    # the library itself does not
    assert tokenizer.encode("cat").ids == tokenizer.encode(" cat").ids
    assert retokenize(b"cat", tokenizer).tolist() == tokenizer.encode("cat").ids
    spaced = retokenize(b" cat", tokenizer)
    assert TokenBytes.of(tokenizer).bytes_of(spaced) == b" cat"
    assert is_canonical(spaced, tokenizer)


def test_without_a_prefix_a_leading_space_is_text():
    tokenizer = fast(legacy=False, scheme="never")
    table = TokenBytes.of(tokenizer)
    assert not table.prefixed
    assert table.bytes_of(retokenize(b" cat", tokenizer)) == b" cat"
    assert retokenize(b"cat", tokenizer).tolist() != retokenize(b" cat", tokenizer).tolist()


def test_unigram_keeps_its_bytes_and_reads_control_pieces_as_text():
    tokenizer = unigram()
    table = TokenBytes.of(tokenizer)
    assert 1 in tokenizer.encode("the</s>").ids
    for text in (b"the cat", b" the cat", b"the</s>", b"</s>x", b""):
        ids = retokenize(text, tokenizer)
        assert table.bytes_of(ids) == text
        assert not table.control & set(ids.tolist())
    assert retokenize(b"the cat", tokenizer).tolist() == tokenizer.encode("the cat").ids
    with pytest.raises(Unrepresentable, match="outside the vocabulary: byte 4 of 7"):
        retokenize("the \u20ac".encode(), tokenizer)


def test_unigram_with_bytes_keeps_characters_that_have_no_piece():
    tokenizer = unigram(byte_fallback=True)
    ids = retokenize("the \u20ac".encode(), tokenizer)
    assert TokenBytes.of(tokenizer).bytes_of(ids) == "the \u20ac".encode()


def test_unigram_may_take_a_spelled_byte_piece_for_a_byte_but_never_keeps_it_so():
    tokenizer = unigram(byte_fallback=True)
    assert TokenBytes.of(tokenizer).bytes_of(tokenizer.encode("<0x41>").ids) == b"A"
    with pytest.raises(Unrepresentable, match="bytes changed"):
        retokenize(b"<0x41>", tokenizer)


def test_names_that_stand_for_hidden_pieces_are_no_way_in():
    tokenizer = unigram()
    content = ContentEncoder.of(tokenizer).encoder
    names = [piece for piece in content.get_vocab() if piece.startswith("\x00")]
    assert names
    tokenizer.add_tokens(["<tool>"])
    for result in retokenize_batch([f"cat{name}".encode() for name in names], tokenizer):
        assert isinstance(result, Unrepresentable)


def test_word_pieces_are_declared_lossy_and_kept_or_refused():
    tokenizer = word_piece()
    table = TokenBytes.of(tokenizer)
    assert table.family == "WordPiece"
    assert any("white space" in loss for loss in table.losses)
    for text in (b"the cats", b"cat , the", b"[ CLS ]", b""):
        assert table.bytes_of(retokenize(text, tokenizer)) == text
    changed = (b"the  cat", b" the", b"cat,", b"the\ncat", b"[CLS]", "\u4e2d\u4e2d".encode())
    for text in changed:
        with pytest.raises(Unrepresentable, match="bytes changed"):
            retokenize(text, tokenizer)
    with pytest.raises(Unrepresentable, match="outside the vocabulary"):
        retokenize(b"the zebra", tokenizer)
    assert retokenize(b"the cats", tokenizer).tolist() == tokenizer.encode("the cats").ids
    with pytest.raises(Unrepresentable, match="bytes changed"):
        retokenize(b"The", word_piece(lowercase=True))


def byte_level(normalizer) -> Tokenizer:
    vocabulary = {piece: i for i, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize(
    ("normalizer", "changed"),
    [
        (normalizers.NFC(), "e\u0301"),
        (normalizers.NFD(), "\u00e9"),
        (normalizers.NFKC(), "\u2460"),
        (normalizers.NFKD(), "\ufb01"),
        (normalizers.Lowercase(), "A"),
        (normalizers.StripAccents(), "e\u0301"),
        (normalizers.Nmt(), "a\u200bb"),
        (normalizers.Strip(), "a "),
        (normalizers.Replace("``", '"'), "``"),
        (normalizers.Replace(Regex(" {2,}"), " "), "a  b"),
    ],
    ids=lambda part: type(part).__name__ if not isinstance(part, str) else "",
)
def test_a_normaliser_is_named_and_what_it_changes_is_refused(normalizer, changed):
    tokenizer = byte_level(normalizer)
    table = TokenBytes.of(tokenizer)
    name = type(normalizer).__name__
    assert table.losses == (f"its normaliser {name} changes some characters",)
    assert table.bytes_of(retokenize(b"a b", tokenizer)) == b"a b"
    with pytest.raises(Unrepresentable, match="bytes changed"):
        retokenize(changed.encode(), tokenizer)
    # as a policy's own sample it is text all the same, and not canonical
    sampled = retokenize(changed.encode(), byte_level(None))
    assert table.bytes_of(sampled) == changed.encode()
    assert not is_canonical(sampled, tokenizer)


def test_a_tokenizer_that_keeps_everything_declares_no_loss():
    table = TokenBytes.of(byte_level(None))
    assert (table.losses, table.missing_bytes) == ((), b"")


def test_a_byte_that_only_longer_pieces_hold_counts_as_missing():
    pieces = [piece for piece in sorted(pre_tokenizers.ByteLevel.alphabet()) if piece != "\u010d"]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "\u010d\u010a"])}  # "\r\n" as one
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    table = TokenBytes.of(tokenizer)
    assert table.missing_bytes == b"\r"
    assert table.losses == ("its vocabulary lacks the bytes 0D",)
