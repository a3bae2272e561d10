"""Structural tokens inside a response: think tags and tool markup, by kind.

A policy may declare tokens that belong to its responses although they are no text: the tags around
its reasoning, the marks of a tool call. A response then is text segments between structural
segments. Each text segment is tokenised by itself, so a response is canonical when each of its text
segments is; a structural segment is one token wherever its kind is declared, and plain text
elsewhere. Source: docs/tokens.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mrl.errors import InputError
from mrl.exchange.fields import Segment
from mrl.tokens.retokenization import ContentEncoder, Ids, Unrepresentable
from mrl.tokens.token_bytes import whole_numbers

# Spellings that are read from a tokenizer's added tokens where nothing is declared; of a kind the
# first that the tokenizer has.
COMMON: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "think_open": ("<think>", "[THINK]"),
        "think_close": ("</think>", "[/THINK]"),
        "tool_calls_open": ("<｜tool▁calls▁begin｜>", "[TOOL_CALLS]"),
        "tool_calls_close": ("<｜tool▁calls▁end｜>",),
        "tool_call_open": ("<tool_call>", "<｜tool▁call▁begin｜>"),
        "tool_call_close": ("</tool_call>", "<｜tool▁call▁end｜>"),
        "tool_separator": ("<｜tool▁sep｜>",),
    }
)

Piece = int | NDArray[np.int64]


@dataclass(frozen=True)
class StructuralTokens:
    """The structural tokens of one policy.

    Parameters
    ----------
    ids : mapping of str to int
        Token of each kind.
    spellings : mapping of str to bytes
        What that token stands for in the text, also where the tokenizer marks it special.
    """

    ids: Mapping[str, int] = field(default_factory=dict)
    spellings: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls, tokenizer: Any, declared: Mapping[str, str] | str = "auto", /
    ) -> "StructuralTokens":
        """Find the declared tokens in a tokenizer.

        Parameters
        ----------
        tokenizer : transformers fast tokenizer
            The policy's own.
        declared : mapping of str to str, or "auto"
            Text of each kind's token. ``"auto"``: the spellings of `COMMON` that are among the
            tokenizer's added tokens. An empty mapping declares none.

        Raises
        ------
        InputError
            If a declared text is no single token, ends a response, or stands for two kinds.
        """
        added: dict[str, int] = {
            token.content: index for index, token in tokenizer.added_tokens_decoder.items()
        }
        if isinstance(declared, str):
            if declared != "auto":
                raise InputError(f"segments={declared!r}; expected 'auto' or a token for each kind")
            present = {kind: [t for t in texts if t in added] for kind, texts in COMMON.items()}
            declared = {kind: texts[0] for kind, texts in present.items() if texts}
        vocabulary: Mapping[str, int] = tokenizer.get_vocab() if declared else {}
        ids = {
            kind: _structural_id(kind, text, added, vocabulary) for kind, text in declared.items()
        }
        for kind, index in ids.items():
            others = [other for other in ids if other != kind and ids[other] == index]
            if index == tokenizer.eos_token_id or others:
                what = f"also that of {others}" if others else "the end-of-sequence token"
                raise InputError(
                    f"segments: the token {declared[kind]!r} of kind {kind!r} is {what}; expected "
                    "a token that means this kind alone"
                )
        spellings = {kind: text.encode() for kind, text in declared.items()}
        return cls(MappingProxyType(ids), MappingProxyType(spellings))

    @cached_property
    def kinds(self) -> Mapping[int, str]:
        """Kind of each structural token."""
        return {index: kind for kind, index in self.ids.items()}

    @cached_property
    def _sorted_ids(self) -> NDArray[np.int64]:
        return np.array(sorted(self.kinds), dtype=np.int64)

    def places(self, ids: NDArray[np.int64], /) -> NDArray[np.intp]:
        """Positions of structural tokens among `ids`."""
        if not self.ids:
            return np.zeros(0, np.intp)
        return np.flatnonzero(np.isin(ids, self._sorted_ids))


def _structural_id(
    kind: str, text: str, added: Mapping[str, int], vocabulary: Mapping[str, int], /
) -> int:
    index = added.get(text, vocabulary.get(text))
    if index is None:
        raise InputError(
            f"segments: kind {kind!r} is declared as {text!r}, which is no token of the tokenizer; "
            "expected the text of one of its tokens (or leave this kind out)"
        )
    return index


@dataclass(frozen=True, eq=False)
class SegmentEncoder:
    """Responses of one policy as typed text and back.

    Parameters
    ----------
    content : ContentEncoder
        Tokens of plain text.
    structure : StructuralTokens
        What stands between texts.
    """

    content: ContentEncoder
    structure: StructuralTokens = StructuralTokens()

    @classmethod
    def of(
        cls, policy: str, tokenizer: Any, declared: Mapping[str, str] | str = "auto", /
    ) -> "SegmentEncoder":
        """Build that of a policy.

        Parameters
        ----------
        policy : str
            Its name, for messages.
        tokenizer, declared
            As in `StructuralTokens.of`.

        Raises
        ------
        InputError
            As there, naming the policy.
        """
        try:
            structure = StructuralTokens.of(tokenizer, declared)
        except InputError as error:
            raise InputError(f"policy {policy!r}: {error}") from None
        return cls(ContentEncoder.of(tokenizer), structure)

    def spell(self, ids: ArrayLike, /) -> tuple[bytes, tuple[Segment, ...]]:
        """Text of a response without its end token, and the structural segments in it.

        Parameters
        ----------
        ids : array_like of int, shape (n,)
            Token ids of one response.

        Raises
        ------
        ValueError
            If an id names no token of the tokenizer.
        """
        text, segments = bytearray(), []
        for piece in self._pieces(ids):
            start = len(text)
            if isinstance(piece, int):
                kind = self.structure.kinds[piece]
                text += self.structure.spellings[kind]
                segments.append(Segment(kind, start, len(text)))
            else:
                text += self.content.table.bytes_of(piece)
        return bytes(text), tuple(segments)

    def accept(
        self,
        text: bytes,
        segments: Sequence[Segment],
        source: StructuralTokens | None = None,
        /,
    ) -> tuple[Segment, ...]:
        """Those of a peer's segments that this policy reads as its own token of the kind.

        Its kind is declared here, and its bytes are this policy's spelling or the one that the
        peer declares: a peer cannot pass other text off as structure. What is not accepted is
        read as text. `text` and `segments` are those of a record, whose segments are ordered and
        do not overlap.

        Parameters
        ----------
        text : bytes
            The peer's response.
        segments : sequence of Segment
            Its structural segments.
        source : StructuralTokens, optional
            What the peer declares, where that is known.
        """
        if not segments:
            return ()
        declared = {} if source is None else source.spellings
        return tuple(
            one
            for one in segments
            if one.kind in self.structure.ids
            and text[one.start : one.stop]
            in (self.structure.spellings[one.kind], declared.get(one.kind))
        )

    def encode_batch(
        self, texts: Sequence[bytes], segments: Sequence[Sequence[Segment]] | None = None, /
    ) -> list[Ids | Unrepresentable]:
        """Canonical ids of typed texts: each text segment by itself, each structural one a token.

        Parameters
        ----------
        texts : sequence of bytes
            Responses without end tokens.
        segments : sequence of sequence of Segment, optional
            Structural segments of each, as `accept` gives. Default: all is plain text.

        Returns
        -------
        list
            For each response an int64 array, or the `Unrepresentable` of its first text segment
            that has none (not raised).
        """
        if segments is None or not any(segments):
            return self.content.encode_batch(texts)
        cut = [
            _cut(text, marks, self.structure.ids)
            for text, marks in zip(texts, segments, strict=True)
        ]
        encoded = iter(
            self.content.encode_batch(
                [piece for pieces in cut for piece in pieces if isinstance(piece, bytes)]
            )
        )
        out: list[Ids | Unrepresentable] = []
        for pieces in cut:
            ids = [
                next(encoded) if isinstance(piece, bytes) else np.array([piece], np.int64)
                for piece in pieces
            ]
            refused = next((one for one in ids if isinstance(one, Unrepresentable)), None)
            out.append(np.concatenate(ids) if refused is None else refused)  # type: ignore[arg-type]
        return out

    def canonical_batch(
        self,
        rows: Sequence[ArrayLike],
        spelled: Sequence[tuple[bytes, Sequence[Segment]]] | None = None,
        /,
    ) -> NDArray[np.bool_]:
        """Whether each text segment of each response has its canonical ids, shape (len(rows),).

        Parameters
        ----------
        rows : sequence of array_like of int
            Sampled ids without their end token. A control token that is not declared as structural
            is never canonical.
        spelled : sequence of (bytes, sequence of Segment), optional
            What `spell` gives of each row, where it is at hand.
        """
        if spelled is None:
            spelled = [self.spell(ids) for ids in rows]
        best = self.encode_batch([text for text, _ in spelled], [marks for _, marks in spelled])
        same = [
            not isinstance(ids, Unrepresentable) and ids.tolist() == list(row)  # type: ignore[arg-type]
            for ids, row in zip(best, rows, strict=True)
        ]
        return np.array(same, dtype=bool)

    def lengths(
        self, ids: ArrayLike, segments: Sequence[Segment] | None = None, /
    ) -> NDArray[np.int64]:
        """Bytes of each token of a response, 0 for control tokens; what alignment reads.

        Parameters
        ----------
        ids : array_like of int, shape (n,)
            Token ids; an end token may be among them.
        segments : sequence of Segment, optional
            The accepted segments that `ids` were encoded from: a structural token is then as long
            as the peer spelled it. Default: as it is spelled here.
        """
        return self.lengths_batch([ids], None if segments is None else [segments])

    def lengths_batch(
        self,
        rows: Sequence[ArrayLike],
        segments: Sequence[Sequence[Segment]] | None = None,
        /,
    ) -> NDArray[np.int64]:
        """`lengths` of many responses in one call, laid end to end."""
        if not rows:
            return np.zeros(0, np.int64)
        ids = np.concatenate([whole_numbers(row) for row in rows])
        counts = np.array([np.size(row) for row in rows])
        places = self.structure.places(ids)
        starts = np.concatenate([counts.cumsum() - counts, places, places + 1])
        lengths = self.content.table.lengths_joined(ids, np.sort(starts))
        if segments is None:
            kinds = [self.structure.kinds[index] for index in ids[places].tolist()]
            lengths[places] = [len(self.structure.spellings[kind]) for kind in kinds]
        else:
            lengths[places] = [one.stop - one.start for marks in segments for one in marks]
        return lengths

    def _pieces(self, ids: ArrayLike, /) -> list[Piece]:
        """Text segments as arrays of ids, and the structural tokens between them as numbers."""
        row = whole_numbers(ids)
        places = self.structure.places(row)
        if not len(places):
            return [row] if row.size else []
        pieces: list[Piece] = []
        end = 0
        for place in places.tolist():
            if place > end:
                pieces.append(row[end:place])
            pieces.append(int(row[place]))
            end = place + 1
        if end < row.size:
            pieces.append(row[end:])
        return pieces


def _cut(text: bytes, segments: Sequence[Segment], ids: Mapping[str, int], /) -> list[bytes | int]:
    """Text segments as bytes and structural segments as ids; an empty text is one text segment."""
    pieces: list[bytes | int] = []
    end = 0
    for one in segments:
        if one.start > end:
            pieces.append(text[end : one.start])
        pieces.append(ids[one.kind])
        end = one.stop
    if end < len(text) or not pieces:
        pieces.append(text[end:])
    return pieces
