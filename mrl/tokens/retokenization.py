"""A peer's response in the receiver's vocabulary: the same bytes, or refused.

The text is content, never control: it is encoded by a copy of the tokenizer without added tokens,
so text that spells a special token becomes ordinary tokens. The copy gives characters outside the
vocabulary an id of their own, so nothing is dropped unseen; it is never changed after it is
built, so threads can share it. Source: docs/tokens.md.
"""

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mrl.tokens._backends import backend_of, size_of
from mrl.tokens._content import ContentTokenizer, content_of_model, content_of_spec
from mrl.tokens._families import spec_of
from mrl.tokens._sentencepiece import SentencePieceModel, is_processor
from mrl.tokens.token_bytes import TokenBytes, whole_numbers

Ids = NDArray[np.int64]

INVALID_UTF8 = "invalid UTF-8"
OUTSIDE_VOCABULARY = "outside the vocabulary"
BYTES_CHANGED = "bytes changed"


class Unrepresentable(ValueError):
    """A response that a tokenizer cannot spell byte for byte.

    Parameters
    ----------
    reason : str
        ``"invalid UTF-8"``, ``"outside the vocabulary"`` or ``"bytes changed"`` (by the
        normaliser, or because the text spells a control piece).
    detail : str
        Where, and what stood there.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True, eq=False)
class ContentEncoder:
    """A tokenizer's token table with its content-only copy; build once, use from any thread.

    Build it with `ContentEncoder.of`.

    Parameters
    ----------
    table : TokenBytes
        Bytes of the tokenizer's ids.
    content : ContentTokenizer
        The copy without added tokens, post-processor, truncation and padding.
    """

    table: TokenBytes
    content: ContentTokenizer

    @classmethod
    def of(cls, tokenizer: Any, /) -> "ContentEncoder":
        """Build from a transformers fast, ``tokenizers`` or SentencePiece tokenizer.

        Raises
        ------
        UnsupportedTokenizer
            If the tokenizer's family is not supported.
        """
        backend = backend_of(tokenizer)
        if is_processor(backend):
            model = SentencePieceModel.of(backend)
            return cls(TokenBytes.from_sentencepiece(model), content_of_model(model))
        spec = spec_of(backend)
        table = TokenBytes.from_spec(spec)
        return cls(table, content_of_spec(spec, len(table)))

    @property
    def encoder(self) -> Any:
        """The library's own object inside the copy."""
        return self.content.tokenizer

    def encode_batch(self, responses: Sequence[bytes], /) -> list[Ids | Unrepresentable]:
        """Canonical ids of each response as plain content, or why there are none.

        Parameters
        ----------
        responses : sequence of bytes
            Response texts; the prompt and turn-end tokens are no part of them.

        Returns
        -------
        list
            For each response an int64 array, shape (n,), whose bytes are the response, or an
            `Unrepresentable` (not raised).
        """
        results: list[Ids | Unrepresentable | None] = []
        texts: list[str] = []
        for response in responses:
            text = _text(response)
            if isinstance(text, str):
                texts.append(text)
            results.append(None if isinstance(text, str) else text)
        encoded = iter(self.content.encode(texts))
        return [
            self._faithful(next(encoded), response) if result is None else result
            for result, response in zip(results, responses, strict=True)
        ]

    def _faithful(self, ids: list[int], response: bytes, /) -> Ids | Unrepresentable:
        """Give the ids as an array if they spell the response."""
        unknown = self.content.unknown
        if unknown is not None and unknown in ids:
            start = len(self.table.join(ids[: ids.index(unknown)]))
            return Unrepresentable(OUTSIDE_VOCABULARY, _at(start, response))
        spelled = self.table.join(ids)
        if spelled == response:
            return np.array(ids, dtype=np.int64)
        pairs = enumerate(zip(spelled, response, strict=False))
        same = min(len(spelled), len(response))
        start = next((i for i, (got, sent) in pairs if got != sent), same)
        got = spelled[start : start + 16]
        return Unrepresentable(BYTES_CHANGED, f"{_at(start, response)}, encoded as {got!r}")


class _EncoderCache:
    """Encoders of tokenizers that callers pass as they are, kept while the tokenizer lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: weakref.WeakKeyDictionary[Any, tuple[int, ContentEncoder]] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, tokenizer: Any, /) -> ContentEncoder:
        backend = backend_of(tokenizer)
        size = size_of(backend)  # tokens may have been added since
        with self._lock:
            kept = self._kept.get(backend)
            if kept is None or kept[0] != size:
                kept = (size, ContentEncoder.of(backend))
                self._kept[backend] = kept
            return kept[1]


_encoders = _EncoderCache()


def content_encoder(tokenizer: Any, /) -> ContentEncoder:
    """`tokenizer` if it is a `ContentEncoder` already, else its encoder, built once.

    The encoder of a tokenizer is kept while the tokenizer lives and is built anew when tokens were
    added. Other changes in place (of its normaliser, say) are not seen: pass a fresh
    `ContentEncoder.of` then.
    """
    return tokenizer if isinstance(tokenizer, ContentEncoder) else _encoders.get(tokenizer)


def retokenize(response: bytes, tokenizer: Any, /) -> Ids:
    """Canonical ids of a response as plain content in the vocabulary of `tokenizer`.

    Parameters
    ----------
    response : bytes
        UTF-8 text of the response alone, without turn-end tokens.
    tokenizer : ContentEncoder or a tokenizer that `TokenBytes.of` reads
        The receiver's.

    Returns
    -------
    ndarray of int64, shape (n,)
        Ids whose table bytes join to exactly `response`.

    Raises
    ------
    Unrepresentable
        If there are no such ids.
    UnsupportedTokenizer
        If the tokenizer's family is not supported.
    """
    (result,) = content_encoder(tokenizer).encode_batch([response])
    if isinstance(result, Unrepresentable):
        raise result
    return result


def retokenize_batch(responses: Sequence[bytes], tokenizer: Any, /) -> list[Ids | Unrepresentable]:
    """`retokenize` for many responses in one call; refusals are returned in place, not raised.

    Raises
    ------
    UnsupportedTokenizer
        If the tokenizer's family is not supported.
    """
    return content_encoder(tokenizer).encode_batch(responses)


def is_canonical(ids: ArrayLike, tokenizer: Any, /) -> bool:
    """Whether sampled ids are what the tokenizer itself makes of their text.

    Parameters
    ----------
    ids : array_like of int, shape (n,)
        Ids of one response; one control token at the end is set aside as its turn end. Where it is
        known that a response was cut off, also one cut off behind a control token, it has no
        turn end: `SegmentEncoder.canonical_batch` takes ids without one.
    tokenizer : ContentEncoder or a tokenizer that `TokenBytes.of` reads
        The one that the ids belong to.

    Returns
    -------
    bool
        False too where the ids spell no UTF-8 text, or hold a control token inside.
    """
    return bool(is_canonical_batch([ids], tokenizer)[0])


def is_canonical_batch(batch: Sequence[ArrayLike], tokenizer: Any, /) -> NDArray[np.bool_]:
    """`is_canonical` for many responses in one call, shape (len(batch),)."""
    encoder = content_encoder(tokenizer)
    rows = [without_turn_end(ids, encoder.table) for ids in batch]
    canonical = encoder.encode_batch([encoder.table.bytes_of(row) for row in rows])
    return np.array(
        [
            not isinstance(best, Unrepresentable) and np.array_equal(best, row)
            for best, row in zip(canonical, rows, strict=True)
        ],
        dtype=bool,
    )


def without_turn_end(ids: ArrayLike, table: TokenBytes, /) -> Ids:
    """`ids` less one control token at the end, if there is one."""
    row = whole_numbers(ids)
    if row.ndim != 1:
        raise ValueError(f"ids have shape {row.shape}; expected one row: one response")
    return row[:-1] if row.size and int(row[-1]) in table.control else row


def _text(response: bytes, /) -> str | Unrepresentable:
    if not isinstance(response, bytes):
        raise TypeError(
            f"response is of type {type(response).__name__}; expected bytes, as text travels: "
            "text.encode()"
        )
    try:
        return response.decode()
    except UnicodeDecodeError as error:
        return Unrepresentable(INVALID_UTF8, _at(error.start, response))


def _at(start: int, response: bytes, /) -> str:
    return f"byte {start} of {len(response)}, {response[start : start + 16]!r}"
