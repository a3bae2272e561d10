"""Copies of tokenizers that read every text as content, never as control.

Besides the added tokens themselves their vocabulary entries and that of the unknown token go,
since models that look up whole words would find them. Entries that merges make or use stay: they
are ordinary pieces. So do single characters that are not marked special.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from mrl.tokens._families import Spec, puts_prefix_itself, stages
from mrl.tokens._sentencepiece import UNKNOWN, SentencePieceModel


@dataclass(frozen=True, eq=False)
class ContentTokenizer:
    """A content-only copy and how it is called; it never changes, so threads can share it.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer or SentencePieceProcessor
        The copy.
    call : callable
        Gives the ids of each text: ``call(tokenizer, texts)``.
    unknown : int or None
        Id that it emits for text that no piece spells; None if it never does.
    """

    tokenizer: Any
    call: Callable[[Any, Sequence[str]], list[list[int]]]
    unknown: int | None

    def encode(self, texts: Sequence[str], /) -> list[list[int]]:
        """Ids of each text."""
        return self.call(self.tokenizer, texts)


def content_of_spec(spec: Spec, size: int, /) -> ContentTokenizer:
    """Build the copy of a fast tokenizer whose table has `size` ids; `size` itself says unknown."""
    from tokenizers import Tokenizer

    model = dict(spec["model"])
    merges = model.get("merges", ())
    merged = set(chain.from_iterable(merges)) | set(map("".join, merges))
    hidden = {
        token["content"]
        for token in spec.get("added_tokens") or ()
        if token["special"] or len(token["content"]) > 1
    } - merged
    model |= (
        _unigram_without(model, hidden, size)
        if model["type"] == "Unigram"
        else _vocabulary_without(model, hidden, merged, size)
    )
    copied = {
        **spec,
        "model": model,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    mark = puts_prefix_itself(spec)
    if mark is not None:
        # The mark is put before every text, also one that begins with a space.
        steps = [*stages(spec, "normalizer"), {"type": "Prepend", "prepend": mark}]
        copied["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return ContentTokenizer(Tokenizer.from_str(json.dumps(copied)), _fast_ids, size)


def content_of_model(model: SentencePieceModel, /) -> ContentTokenizer:
    """Build the copy of a SentencePiece model."""
    from sentencepiece import SentencePieceProcessor

    kinds = [piece.kind for piece in model.pieces]
    return ContentTokenizer(
        SentencePieceProcessor(model_proto=model.content_only()),
        _processor_ids,
        kinds.index(UNKNOWN) if UNKNOWN in kinds else None,
    )


def _fast_ids(tokenizer: Any, texts: Sequence[str], /) -> list[list[int]]:
    return [row.ids for row in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _processor_ids(processor: Any, texts: Sequence[str], /) -> list[list[int]]:
    ids: list[list[int]] = processor.encode(list(texts), out_type=int)
    return ids


def _vocabulary_without(
    model: dict[str, Any], hidden: set[str], merged: set[str], unknown_id: int, /
) -> dict[str, Any]:
    """Take pieces out of a vocabulary and give the unknown token an id of its own."""
    named = model.get("unk_token")
    hidden = hidden | ({named} - merged if named is not None else set())
    vocabulary = {piece: i for piece, i in model["vocab"].items() if piece not in hidden}
    unknown = next(_names(vocabulary))
    vocabulary[unknown] = unknown_id
    return {"vocab": vocabulary, "unk_token": unknown}


def _unigram_without(model: dict[str, Any], hidden: set[str], unknown_id: int, /) -> dict[str, Any]:
    """The same for Unigram, whose ids are places: hidden pieces get names that no text spells.

    A text that holds such a name is refused: the id stands for other bytes, or none.
    """
    entries = model["vocab"]
    names = _names({piece for piece, _ in entries})
    if model.get("unk_id") is not None:
        hidden = hidden | {entries[model["unk_id"]][0]}
    vocabulary = [[next(names) if piece in hidden else piece, score] for piece, score in entries]
    # The score of unknown characters follows from the lowest one, which must stay.
    lowest = min((score for _, score in entries), default=0.0)
    vocabulary += [[next(names), lowest] for _ in range(len(vocabulary), unknown_id + 1)]
    return {"vocab": vocabulary, "unk_id": unknown_id}


def _names(taken: Any, /) -> Iterator[str]:
    """Names that are not taken and that ordinary text does not spell."""
    count = 0
    while True:
        name = f"\x00unknown{count}\x00"
        if name not in taken:
            yield name
        count += 1
