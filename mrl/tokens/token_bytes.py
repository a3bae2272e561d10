"""The bytes that each token of a tokenizer stands for.

Read from the tokenizer's specification, never by decoding ids one at a time: decoding puts U+FFFD
in place of partial characters. Byte-level pieces are mapped back through the GPT-2 alphabet;
pieces of plain BPE and character tokenizers are their own UTF-8. Source: docs/tokens.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mrl.tokens._families import Spec, backend_of, fingerprint_of, is_byte_level, spec_of

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
    """

    pieces: tuple[bytes | None, ...] = field(repr=False)
    control: frozenset[int] = field(repr=False)
    fingerprint: str

    @classmethod
    def of(cls, tokenizer: Any, /) -> "TokenBytes":
        """Read the table of a transformers fast tokenizer or a ``tokenizers.Tokenizer``.

        Raises
        ------
        UnsupportedTokenizer
            If the tokenizer is not byte-level BPE, plain BPE or a character tokenizer; names the
            family it belongs to.
        """
        return cls.from_spec(spec_of(backend_of(tokenizer)))

    @classmethod
    def from_spec(cls, spec: Spec, /) -> "TokenBytes":
        """Read the table from a tokenizer's specification (``Tokenizer.to_str``, parsed).

        Raises
        ------
        UnsupportedTokenizer
            As `of` does.
        """
        spelled_in = _byte_alphabet() if is_byte_level(spec) else None
        vocabulary: Mapping[str, int] = spec["model"]["vocab"]
        added = spec.get("added_tokens") or []
        control = {token["id"] for token in added if token["special"]}
        unknown = spec["model"].get("unk_token")
        if unknown in vocabulary:
            control.add(vocabulary[unknown])
        ids = [*vocabulary.values(), *(token["id"] for token in added)]
        pieces: list[bytes | None] = [None] * (max(ids, default=-1) + 1)
        for piece, index in vocabulary.items():
            pieces[index] = _spell(piece, spelled_in)
        for token in added:
            pieces[token["id"]] = token["content"].encode()
        for index in control:
            pieces[index] = b""
        return cls(tuple(pieces), frozenset(control), fingerprint_of(spec))

    def __len__(self) -> int:
        """Ids in the table: one more than the largest."""
        return len(self.pieces)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        lengths = [NO_PIECE if piece is None else len(piece) for piece in self.pieces]
        return np.array(lengths, dtype=np.int64)

    @cached_property
    def missing_bytes(self) -> bytes:
        """Byte values that no token contains, in order.

        A byte-level tokenizer that lacks some drops them silently; their texts are refused by
        `retokenize`.
        """
        present = bytearray(256)
        for piece in set(self.pieces) - {None}:
            for value in piece or b"":
                present[value] = 1
        return bytes(value for value in range(256) if not present[value])

    def lengths(self, ids: ArrayLike, /) -> NDArray[np.int64]:
        """Bytes of each token, 0 for control tokens; what `align` reads.

        Parameters
        ----------
        ids : array_like of int, shape (...)
            Token ids.

        Raises
        ------
        ValueError
            If an id names no token of this tokenizer.
        """
        return self._lengths[self._checked(ids)]

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
        known = self._checked(ids).tolist()
        return b"".join(map(self.pieces.__getitem__, known))  # type: ignore[arg-type]

    def _checked(self, ids: ArrayLike, /) -> NDArray[np.intp]:
        row: NDArray[Any] = np.asarray(ids)
        if row.size == 0:
            return np.zeros(row.shape, dtype=np.intp)
        if row.dtype.kind not in "iu":
            raise ValueError(f"ids have type {row.dtype}; expected whole numbers")
        if row.min() < 0 or row.max() >= len(self) or self._lengths[row].min() == NO_PIECE:
            good = (row >= 0) & (row < len(self))
            good[good] = self._lengths[row[good]] != NO_PIECE
            raise ValueError(
                f"token id {row[~good].flat[0]} names no token; expected ids of the {len(self)} "
                "entries of this tokenizer (a model's logits can be wider than its vocabulary: "
                "keep such ids from being sampled)"
            )
        return row.astype(np.intp, copy=False)


def _spell(piece: str, alphabet: Mapping[str, int] | None, /) -> bytes:
    """Bytes of a vocabulary piece.

    A piece of a byte-level vocabulary that leaves the alphabet is what the decoder takes it for:
    its own text.
    """
    if alphabet is None:
        return piece.encode()
    try:
        return bytes(map(alphabet.__getitem__, piece))
    except KeyError:
        return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """Build the GPT-2 alphabet: printable Latin-1 characters stand for their own value.

    The other 68 values, in order, are the characters from U+0100 on.
    """
    printable: Iterable[int] = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    own = {chr(value): value for value in printable}
    others = (value for value in range(256) if chr(value) not in own)
    return own | {chr(0x100 + rank): value for rank, value in enumerate(others)}
