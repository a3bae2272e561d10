"""How the pieces of a vocabulary spell bytes, whichever library the tokenizer comes from."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# No UTF-8 text holds these: that a vocabulary lacks them loses nothing.
NEVER_IN_TEXT = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


@dataclass(frozen=True)
class Spelling:
    """A family's convention.

    Parameters
    ----------
    family : str
        Name of the family.
    byte_level : bool
        Pieces are written in the GPT-2 byte alphabet.
    space_mark : str or None
        Character that stands for a space (U+2581 in SentencePiece).
    byte_pieces : bool
        ``<0xNN>`` stands for one byte.
    continuation : str or None
        Prefix of pieces that go on a word; other pieces then stand for a space and themselves.
    dummy_prefix : bool
        The space that begins a segment is the tokenizer's, not the text's.
    losses : tuple of str
        What the tokenizer does not keep.
    """

    family: str
    byte_level: bool = False
    space_mark: str | None = None
    byte_pieces: bool = False
    continuation: str | None = None
    dummy_prefix: bool = False
    losses: tuple[str, ...] = ()

    def spell(self, piece: str, /) -> bytes:
        """Bytes of a vocabulary piece.

        A piece of a byte-level vocabulary that leaves the alphabet is what the decoder takes it
        for: its own text.
        """
        if self.byte_level:
            try:
                return bytes(map(self._alphabet.__getitem__, piece))
            except KeyError:
                return piece.encode()
        value = self.byte_of(piece)
        if value is not None:
            return bytes([value])
        if self.continuation is not None:
            inside = self.continuation and piece.startswith(self.continuation)
            piece = piece[len(self.continuation) :] if inside else " " + piece
        elif self.space_mark is not None:
            piece = piece.replace(self.space_mark, " ")
        return piece.encode()

    def byte_of(self, piece: str, /) -> int | None:
        """Value of a byte piece; None for any other."""
        found = BYTE_PIECE.fullmatch(piece) if self.byte_pieces else None
        return int(found[1], 16) if found else None

    def is_prefixed(self, piece: str, /) -> bool:
        """Whether the piece's leading space is dropped where it begins a segment."""
        return (
            self.dummy_prefix and self.byte_of(piece) is None and self.spell(piece).startswith(b" ")
        )

    def missing(self, pieces: Iterable[bytes], /) -> bytes:
        """Byte values that the vocabulary lacks, in order.

        Where single bytes have pieces, that is those without a piece of their own: a byte that
        occurs in longer pieces only is lost wherever these do not fit. Elsewhere, those that occur
        in no piece.
        """
        alone = self.byte_level or self.byte_pieces
        present = {value for piece in pieces if not alone or len(piece) == 1 for value in piece}
        return bytes(value for value in range(256) if value not in present)

    @cached_property
    def _alphabet(self) -> Mapping[str, int]:
        return byte_alphabet()


def byte_alphabet() -> dict[str, int]:
    """Build the GPT-2 alphabet: printable Latin-1 characters stand for their own value.

    The other 68 values, in order, are the characters from U+0100 on.
    """
    printable: Iterable[int] = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    own = {chr(value): value for value in printable}
    others = (value for value in range(256) if chr(value) not in own)
    return own | {chr(0x100 + rank): value for rank, value in enumerate(others)}
