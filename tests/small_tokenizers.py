"""Small tokenizers of every family, made on the spot."""

import io
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from mrl.tokens._sentencepiece import SentencePieceModel

MARK = "\u2581"
LINES = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "x = 1, y = 22"] * 8


@cache
def processor(**options: Any) -> Any:
    """Train a small model; the options are the trainer's."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="pip install sentencepiece")
    out = io.BytesIO()
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=out,
        minloglevel=2,
        hard_vocab_limit=False,
        **{
            **{"model_type": "bpe", "vocab_size": 330, "byte_fallback": True},
            **{"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
            **options,
        },
    )
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def fast(*, legacy: bool, scheme: str = "first", split: bool = False) -> Tokenizer:
    """The same BPE model as a fast tokenizer, in either of the two usual pipelines."""
    pieces = [piece.text for piece in SentencePieceModel.of(processor()).pieces]
    place = {piece: i for i, piece in enumerate(pieces)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in pieces[3 + 256 :]
        for cut in range(1, len(piece))
        if {piece[:cut], piece[cut:]} <= place.keys()
    ]
    model = models.BPE(place, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)  # noqa: S106
    tokenizer = Tokenizer(model)
    reading = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if legacy:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=MARK, prepend_scheme=scheme, split=split
        )
    tokenizer.decoder = decoders.Sequence([*reading, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def unigram(*, byte_fallback: bool = False) -> Tokenizer:
    """Build a T5-like pipeline over a vocabulary written by hand."""
    words = [MARK + "the", MARK + "cat", MARK, *"thecad ", "</s>x", *"<>/sx0123456789ABCDEF"]
    vocabulary = [("<unk>", 0.0), ("</s>", 0.0)] + [
        (word, -1.0 - i / 10) for i, word in enumerate(dict.fromkeys(words))
    ]
    if byte_fallback:
        vocabulary += [(f"<0x{value:02X}>", -9.0) for value in range(256)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always")
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def word_piece(*, lowercase: bool = False) -> Tokenizer:
    """Build a BERT-like pipeline."""
    pieces = ["[UNK]", "[CLS]", "the", "cat", "##s", "##at", "c", ",", "[", "]", "CLS", "\u4e2d"]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[CLS]"])
    return tokenizer
