"""The object that does a tokenizer's work, found inside what callers pass."""

from typing import Any

from mrl.tokens._families import UnsupportedTokenizer
from mrl.tokens._sentencepiece import is_processor


def backend_of(tokenizer: Any, /) -> Any:
    """Find the ``tokenizers.Tokenizer`` or SentencePiece processor in `tokenizer`, or itself.

    Raises
    ------
    UnsupportedTokenizer
        If there is none: slow tokenizers, Tekken and tiktoken objects.
    """
    if is_processor(tokenizer):
        return tokenizer
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if isinstance(backend, Tokenizer):
        return backend
    module, name = type(tokenizer).__module__, type(tokenizer).__qualname__
    label = f"{module}.{name}".lower()
    expected = (
        "expected a transformers fast tokenizer, a tokenizers.Tokenizer or a "
        "sentencepiece.SentencePieceProcessor"
    )
    if hasattr(tokenizer, "sp_model"):
        raise UnsupportedTokenizer(
            f"slow SentencePiece tokenizer ({module}.{name})",
            f"{expected}; tokens added in Python are not in its model file: load it with "
            "use_fast=True, or pass its `sp_model` if it has none",
        )
    if "tekken" in label or "mistral" in label:
        raise UnsupportedTokenizer(
            f"Tekken object ({module}.{name})",
            f"{expected}; mrl.tokens.published.from_ranks makes one of the ranks in tekken.json",
        )
    if "tiktoken" in label:
        raise UnsupportedTokenizer(
            f"tiktoken object ({module}.{name})",
            f"{expected}; mrl.tokens.published.from_ranks makes one of its ranks",
        )
    raise UnsupportedTokenizer(f"not a fast tokenizer ({module}.{name})", expected)


def size_of(backend: Any, /) -> int:
    """Entries of a backend, added tokens included."""
    if is_processor(backend):
        return len(backend)
    size: int = backend.get_vocab_size(with_added_tokens=True)
    return size
