"""The bytes that each token of a tokenizer stands for.

Read from the tokenizer's specification, never by decoding ids one at a time: decoding puts U+FFFD
in place of partial characters. Byte-level pieces are mapped back through the GPT-2 alphabet; in
SentencePiece pieces U+2581 is a space and ``<0xNN>`` a byte; other pieces are their own UTF-8.
Source: docs/tokens.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mrl.tokens._backends import backend_of
from mrl.tokens._families import (
    Spec,
    fingerprint_of,
    pieces_of,
    spec_of,
    spelling_of,
    unknown_of,
)
from mrl.tokens._sentencepiece import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    SentencePieceModel,
    is_processor,
)
from mrl.tokens._spelling import NEVER_IN_TEXT, Spelling

NO_PIECE = -1  # length of an id that names no token


@dataclass(frozen=True, eq=False)
class TokenBytes:
    """Bytes, lengths and control flags of a tokenizer's ids, and its fingerprint.

    Build it with `TokenBytes.of`. It is plain data: it can be pickled and read from any thread.

    Parameters
    ----------
    pieces : tuple of bytes or None
        Bytes of each id; ``b""`` for control tokens, None for ids that name no token.
    control : frozenset of int
        Ids of special tokens: they belong to the protocol, not to the text. Added tokens that the
        tokenizer does not mark special stand for their spelling.
    fingerprint : str
        SHA-256 (hex) of vocabulary, merges, normaliser, pre-tokenizer and added tokens. Families
        share names and differ in these.
    family : str
        What the tokenizer was recognised as.
    prefixed : frozenset of int
        Ids whose leading space is the tokenizer's own (SentencePiece's dummy prefix, the first
        word of WordPiece) where they begin a segment; it is then no part of the text.
    missing_bytes : bytes
        Byte values that the vocabulary lacks, in order. Byte-level tokenizers drop them without
        a word; `retokenize` refuses text that holds them. Thirteen values (C0, C1, F5 to FF) are in
        no UTF-8 text, and lacking them loses nothing.
    losses : tuple of str
        What the tokenizer does not keep, in words; empty where every text is representable.
    """

    pieces: tuple[bytes | None, ...] = field(repr=False)
    control: frozenset[int] = field(repr=False)
    fingerprint: str
    family: str = ""
    prefixed: frozenset[int] = field(default=frozenset(), repr=False)
    missing_bytes: bytes = b""
    losses: tuple[str, ...] = ()

    @classmethod
    def of(cls, tokenizer: Any, /) -> "TokenBytes":
        """Read the table of a tokenizer.

        Parameters
        ----------
        tokenizer : transformers fast tokenizer, tokenizers.Tokenizer or SentencePieceProcessor
            Byte-level, SentencePiece (BPE or Unigram), WordPiece, plain BPE or character tokens.

        Raises
        ------
        UnsupportedTokenizer
            If it is of another family, which the error names.
        """
        backend = backend_of(tokenizer)
        if is_processor(backend):
            return cls.from_sentencepiece(SentencePieceModel.of(backend))
        return cls.from_spec(spec_of(backend))

    @classmethod
    def from_spec(cls, spec: Spec, /) -> "TokenBytes":
        """Read the table from a tokenizer's specification (``Tokenizer.to_str``, parsed).

        Raises
        ------
        UnsupportedTokenizer
            As `of` does.
        """
        added = spec.get("added_tokens") or []
        control = {token["id"] for token in added if token["special"]}
        unknown = unknown_of(spec)
        if unknown is not None:
            control.add(unknown)
        spelled = {token["id"]: token["content"] for token in added}
        return cls._build(
            spelling_of(spec), pieces_of(spec), spelled, control, fingerprint_of(spec)
        )

    @classmethod
    def from_sentencepiece(cls, model: SentencePieceModel, /) -> "TokenBytes":
        """Read the table from a SentencePiece model.

        Raises
        ------
        UnsupportedTokenizer
            As `of` does.
        """
        control = {i for i, piece in enumerate(model.pieces) if piece.kind in (CONTROL, UNKNOWN)}
        # Pieces are looked up by text, but only ids are sure to differ.
        vocabulary = [(piece.text, i) for i, piece in enumerate(model.pieces)]
        unused = {i for i, piece in enumerate(model.pieces) if piece.kind == UNUSED}
        return cls._build(
            model.spelling, vocabulary, {}, control, model.fingerprint, never_written=unused
        )

    @classmethod
    def _build(
        cls,
        spelling: Spelling,
        vocabulary: Mapping[str, int] | Sequence[tuple[str, int]],
        added: Mapping[int, str],
        control: set[int],
        fingerprint: str,
        /,
        *,
        never_written: set[int] | frozenset[int] = frozenset(),
    ) -> "TokenBytes":
        """Spell all entries; ids in `never_written` are no evidence that a byte can be written."""
        entries = list(vocabulary.items() if isinstance(vocabulary, Mapping) else vocabulary)
        size = max((index for _, index in entries), default=-1)
        pieces: list[bytes | None] = [None] * (max(size, *added, -1) + 1)
        for piece, index in entries:
            pieces[index] = spelling.spell(piece)
        for index, content in added.items():
            pieces[index] = content.encode()
        for index in control:
            pieces[index] = b""
        aside = control | added.keys()
        prefixed = (
            frozenset(i for piece, i in entries if i not in aside and spelling.is_prefixed(piece))
            if spelling.dummy_prefix
            else frozenset()
        )
        missing = spelling.missing(
            piece for i, piece in enumerate(pieces) if piece and i not in never_written
        )
        return cls(
            tuple(pieces),
            frozenset(control),
            fingerprint,
            spelling.family,
            prefixed,
            missing,
            (*_lacks(missing, spelling), *spelling.losses),
        )

    def __len__(self) -> int:
        """Ids in the table: one more than the largest."""
        return len(self.pieces)

    @cached_property
    def _spelled(self) -> tuple[bytes, ...]:
        return tuple(piece or b"" for piece in self.pieces)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        lengths = [NO_PIECE if piece is None else len(piece) for piece in self.pieces]
        return np.array(lengths, dtype=np.int64)

    @cached_property
    def _prefix(self) -> NDArray[np.int64]:
        """Bytes that each id loses where it begins a segment."""
        lost = np.zeros(len(self), dtype=np.int64)
        lost[list(self.prefixed)] = 1
        return lost

    @cached_property
    def _is_content(self) -> NDArray[np.bool_]:
        content = np.ones(len(self), dtype=bool)
        content[list(self.control)] = False
        return content

    def lengths(self, ids: ArrayLike, /) -> NDArray[np.int64]:
        """Bytes of each token, 0 for control tokens; what `align` reads.

        Parameters
        ----------
        ids : array_like of int, shape (..., n)
            Token ids; each row is one whole segment.

        Raises
        ------
        ValueError
            If an id names no token of this tokenizer.
        """
        row = self._checked(ids)
        lengths = self._lengths[row]
        if self.prefixed and row.size:
            first = self._is_content[row].argmax(axis=-1)[..., None]
            begin = np.take_along_axis(row, first, axis=-1)
            short = np.take_along_axis(lengths, first, axis=-1) - self._prefix[begin]
            np.put_along_axis(lengths, first, short, axis=-1)
        return lengths

    def lengths_joined(self, ids: ArrayLike, starts: ArrayLike, /) -> NDArray[np.int64]:
        """`lengths` of many segments laid end to end, in one call.

        Parameters
        ----------
        ids : array_like of int, shape (n,)
            Token ids of all segments.
        starts : array_like of int, shape (segments,)
            Place of the first token of each, in ascending order; segments may be empty.

        Raises
        ------
        ValueError
            If an id names no token of this tokenizer.
        """
        row = self._checked(ids)
        lengths = self._lengths[row]
        if self.prefixed and row.size:
            ends = np.append(np.asarray(starts, dtype=np.int64), row.size)
            content = np.flatnonzero(self._is_content[row])
            # The first content token at or after each start, if its segment has one.
            place = np.append(content, row.size)[np.searchsorted(content, ends[:-1])]
            begin = place[place < ends[1:]]
            lengths[begin] -= self._prefix[row[begin]]
        return lengths

    def bytes_of(self, ids: ArrayLike, /) -> bytes:
        """Join the bytes that one segment of ids spells; they need not be whole characters.

        Parameters
        ----------
        ids : array_like of int, shape (n,)
            Token ids of one whole segment.

        Raises
        ------
        ValueError
            If an id names no token of this tokenizer.
        """
        return self.join(self._checked(ids).tolist())

    def join(self, ids: Sequence[int], /) -> bytes:
        """`bytes_of` ids below ``len(self)``; those that name no token spell nothing."""
        spelled = b"".join(map(self._spelled.__getitem__, ids))
        if self.prefixed and next((i for i in ids if i not in self.control), None) in self.prefixed:
            return spelled[1:]
        return spelled

    def _checked(self, ids: ArrayLike, /) -> NDArray[np.int64]:
        row = whole_numbers(ids)
        if row.size == 0:
            return row
        if row.min() < 0 or row.max() >= len(self) or self._lengths[row].min() == NO_PIECE:
            good = (row >= 0) & (row < len(self))
            good[good] = self._lengths[row[good]] != NO_PIECE
            raise ValueError(
                f"token id {row[~good].flat[0]} names no token; expected ids of the {len(self)} "
                "entries of this tokenizer (a model's logits can be wider than its vocabulary: "
                "keep such ids from being sampled)"
            )
        return row


def whole_numbers(ids: ArrayLike, /) -> NDArray[np.int64]:
    """Token ids as an array of the same shape.

    Raises
    ------
    ValueError
        If they are no whole numbers: rounding them would name other tokens.
    """
    row: NDArray[Any] = np.asarray(ids)
    if row.size and row.dtype.kind not in "iu":
        raise ValueError(f"ids have type {row.dtype}; expected whole numbers")
    return row.astype(np.int64, copy=False)


def _lacks(missing: bytes, spelling: Spelling, /) -> Iterator[str]:
    """What missing bytes and a mark for spaces cost, in words."""
    lacking = [f"{value:02X}" for value in missing if value not in NEVER_IN_TEXT]
    if not (spelling.byte_level or spelling.byte_pieces):
        yield "its vocabulary holds some characters only"
    elif lacking:
        yield f"its vocabulary lacks the bytes {' '.join(lacking)}"
    if (mark := spelling.space_mark) is not None:
        yield f"the character {mark} (U+{ord(mark):04X}) stands for a space"
