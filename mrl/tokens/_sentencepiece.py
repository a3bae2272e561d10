"""A SentencePiece model read from its own file format, without its generated classes.

The format is a protocol buffer: fields of a number, a wire type and a value. What is read of it:
pieces (field 1: text 1, score 2, type 3), the trainer's settings (field 2), the normaliser's
(field 3) and the denormaliser's (field 5). Source: sentencepiece_model.proto of the library.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mrl.tokens._families import UnsupportedTokenizer
from mrl.tokens._spelling import Spelling

MARK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}


def is_processor(tokenizer: Any, /) -> bool:
    """Whether `tokenizer` is a ``sentencepiece.SentencePieceProcessor``; imports nothing."""
    return any(
        kind.__module__.split(".")[0] == "sentencepiece" for kind in type(tokenizer).__mro__
    ) and hasattr(tokenizer, "serialized_model_proto")


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary."""

    text: str
    score: bytes
    kind: int


@dataclass(frozen=True, eq=False)
class SentencePieceModel:
    """A model as its processor loaded it.

    Parameters
    ----------
    data : bytes
        The serialised model.
    """

    data: bytes

    @classmethod
    def of(cls, processor: Any, /) -> "SentencePieceModel":
        """Read the model that a processor holds."""
        return cls(processor.serialized_model_proto())

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The vocabulary, in the order of its ids."""
        return tuple(_piece(value) for number, value in _fields(self.data) if number == 1)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all that decides which ids a text gets."""
        entries = [(piece.text, piece.score.hex(), piece.kind) for piece in self.pieces]
        normaliser = {number: _plain(value) for number, value in self._part(3).items()}
        text = json.dumps(["sentencepiece", self._model_type, self._suffix, normaliser, entries])
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def spelling(self) -> Spelling:
        """How the pieces spell bytes.

        Raises
        ------
        UnsupportedTokenizer
            If words end with their space mark, spaces are not marked, or decoding rewrites text.
        """
        normaliser = self._part(3)
        family = f"SentencePiece {MODEL_TYPES.get(self._model_type, 'of unknown type')}"
        if self._suffix or not normaliser.get(5, 1):
            raise UnsupportedTokenizer(
                family,
                "its space marks end words, or it has none (treat_whitespace_as_suffix, "
                "escape_whitespaces); expected marks at the beginning of words",
            )
        if self._part(5).get(2):
            raise UnsupportedTokenizer(
                family, "it rewrites text when it decodes (denormalizer_spec); expected none"
            )
        losses = []
        if normaliser.get(2):
            name = bytes(normaliser.get(1, b"")).decode()
            losses.append(f"its normaliser {name} changes some characters")
        if normaliser.get(4, 1):
            losses.append("it takes out extra spaces")
        return Spelling(
            family=family,
            space_mark=MARK,
            byte_pieces=any(piece.kind == BYTE for piece in self.pieces),
            dummy_prefix=bool(normaliser.get(3, 1)),
            losses=tuple(losses),
        )

    def content_only(self) -> bytes:
        """Serialise a copy that reads every text as content.

        User-defined pieces are found in text before anything else; those of several characters
        (turn and tool markers, unless all white space) become unused. Control pieces are never
        found in text.
        """
        ids = iter(self.pieces)
        out = bytearray()
        for number, value in _fields(self.data):
            if number == 1:
                piece = next(ids)
                text = piece.text.replace(MARK, " ")
                hidden = piece.kind == USER_DEFINED and len(text) > 1 and not text.isspace()
                # The last value of a field holds.
                value = bytes(value) + (bytes([3 << 3, UNUSED]) if hidden else b"")
            out += _field(number, value)
        return bytes(out)

    @property
    def _model_type(self) -> int:
        return int(self._part(2).get(3, 1))

    @property
    def _suffix(self) -> int:
        return int(self._part(2).get(24, 0))

    def _part(self, wanted: int, /) -> dict[int, Any]:
        """Fields of a part of the model; the last of a repeated one."""
        return {
            number: value
            for outer, part in _fields(self.data)
            if outer == wanted
            for number, value in _fields(part)
        }


def _piece(data: bytes, /) -> Piece:
    found = dict(_fields(data))
    return Piece(bytes(found.get(1, b"")).decode(), bytes(found.get(2, b"")), found.get(3, NORMAL))


def _plain(value: Any, /) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _fields(data: bytes, /) -> Iterator[tuple[int, Any]]:
    """Fields of a message: number, and value as int (varint) or bytes (all else)."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError(
                f"model has wire type {wire} at byte {at}, which reaches past its {len(data)} "
                "bytes or is unknown; expected a serialised SentencePiece model"
            )
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int, /) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _field(number: int, value: bytes, /) -> bytes:
    """Serialise one of the model's parts, all of which are messages."""
    return _number(number << 3 | 2) + _number(len(value)) + value


def _number(value: int, /) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
