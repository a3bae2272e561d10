"""What a tokenizer's serialised form says about the bytes of its tokens.

The tokenizer is read as the specification that the tokenizers library writes
(``Tokenizer.to_str``), never through ``decode``: decoding one id at a time replaces partial
characters and eats prefix spaces.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mrl.errors import InputError

Spec = Mapping[str, Any]


class UnsupportedTokenizer(InputError, ValueError):
    """A tokenizer whose tokens cannot be read as bytes without guessing.

    Parameters
    ----------
    family : str
        What the tokenizer was recognised as.
    why : str
        What stands in the way, and what would work.
    """

    def __init__(self, family: str, why: str) -> None:
        super().__init__(family, why)
        self.family = family
        self.why = why

    def __str__(self) -> str:
        return f"tokenizer of family {self.family!r} is not supported: {self.why}"


EXPECTED = "expected byte-level BPE, plain BPE or a character tokenizer"
SENTENCEPIECE = "SentencePiece"


def backend_of(tokenizer: Any, /) -> Any:
    """Find the ``tokenizers.Tokenizer`` inside `tokenizer`, which may be one itself.

    Raises
    ------
    UnsupportedTokenizer
        If there is none: slow tokenizers, SentencePiece processors, Tekken and tiktoken objects.
    """
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if isinstance(backend, Tokenizer):
        return backend
    module, name = type(tokenizer).__module__, type(tokenizer).__qualname__
    label = f"{module}.{name}".lower()
    if "sentencepiece" in label or hasattr(tokenizer, "IdToPiece"):
        family = f"{SENTENCEPIECE} (processor object)"
    elif "mistral" in label or "tekken" in label:
        family = "Tekken (raw bytes)"
    elif "tiktoken" in label:
        family = "tiktoken (raw bytes)"
    else:
        family = f"not a fast tokenizer ({module}.{name})"
    raise UnsupportedTokenizer(
        family, "expected a transformers fast tokenizer or a tokenizers.Tokenizer"
    )


def spec_of(backend: Any, /) -> dict[str, Any]:
    """Read the tokenizer's complete specification as plain data."""
    spec: dict[str, Any] = json.loads(backend.to_str())
    return spec


def fingerprint_of(spec: Spec, /) -> str:
    """SHA-256 (hex) of all that decides which ids a text gets.

    That is the model with vocabulary and merges, the normaliser, the pre-tokenizer and the added
    tokens. The decoder, the post-processor, truncation and padding are left out: they move no
    token boundary inside a response, and the last two are changed in passing by ordinary calls.
    """
    parts = {key: spec.get(key) for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def stages(spec: Spec, key: str, /) -> Iterator[Mapping[str, Any]]:
    """Unnest the steps of a pipeline part: "normalizer", "pre_tokenizer" or "decoder"."""
    todo = [spec.get(key)]
    while todo:
        stage = todo.pop(0)
        if not stage:
            continue
        inner = [
            stage[name] for name in ("normalizers", "pretokenizers", "decoders") if name in stage
        ]
        if inner:
            todo[:0] = inner[0]
        else:
            yield stage


def is_byte_level(spec: Spec, /) -> bool:
    """Whether pieces are spelled in the GPT-2 byte alphabet (else: in plain characters).

    Raises
    ------
    UnsupportedTokenizer
        If the specification belongs to a family whose pieces are neither.
    """
    model = spec["model"]
    pre = list(stages(spec, "pre_tokenizer"))
    decoding = {stage["type"] for stage in stages(spec, "decoder")}
    normalising = {stage["type"] for stage in stages(spec, "normalizer")}
    _refuse_other_models(model, {stage["type"] for stage in pre} | decoding)
    byte_stages = [stage for stage in pre if stage["type"] == "ByteLevel"]
    # A ByteLevel normaliser spells bytes too; then a pre-tokenizer need not.
    spelled = bool(byte_stages) or "ByteLevel" in normalising
    if decoding and spelled != ("ByteLevel" in decoding):
        raise UnsupportedTokenizer(
            "byte-level BPE with a one-sided byte alphabet",
            "encoding and decoding disagree on whether pieces spell bytes; expected ByteLevel as "
            "pre-tokenizer and as decoder, or as neither",
        )
    if any(stage.get("add_prefix_space") for stage in byte_stages):
        raise UnsupportedTokenizer(
            "byte-level BPE with a prefix space",
            "its pre-tokenizer puts a space before each text, which the text does not have; "
            "expected ByteLevel(add_prefix_space=False)",
        )
    _refuse_lost_separators(pre)
    if decoding - {"ByteLevel", "Fuse"}:
        raise UnsupportedTokenizer(
            f"pieces joined by {', '.join(sorted(decoding - {'ByteLevel', 'Fuse'}))}",
            f"its decoder rewrites pieces when it joins them; {EXPECTED}",
        )
    return spelled


def _refuse_other_models(model: Mapping[str, Any], steps: set[str], /) -> None:
    kind = model["type"]
    if kind == "WordPiece" or "WordPiece" in steps:
        raise UnsupportedTokenizer("WordPiece", f"it does not keep white space; {EXPECTED}")
    if kind == "Unigram":
        raise UnsupportedTokenizer(f"{SENTENCEPIECE} Unigram", EXPECTED)
    if model.get("byte_fallback") or steps & {"Metaspace", "ByteFallback"}:
        raise UnsupportedTokenizer(
            f"{SENTENCEPIECE} {kind} (metaspace or byte fallback)",
            f"its pieces stand for spaces and bytes by convention; {EXPECTED}",
        )
    if kind not in ("BPE", "WordLevel"):
        raise UnsupportedTokenizer(f"model {kind}", EXPECTED)
    for mark in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(mark):
            raise UnsupportedTokenizer(
                f"{kind} with word marks",
                f"{mark}={model[mark]!r} is spelled in its pieces but not in the text; {EXPECTED}",
            )
    if model.get("dropout"):
        raise UnsupportedTokenizer(
            f"{kind} with dropout",
            f"dropout={model['dropout']} makes the tokens of a text random; set model.dropout "
            "to None",
        )


def _refuse_lost_separators(pre: list[Mapping[str, Any]], /) -> None:
    """Refuse pre-tokenizers that leave separators out of every token."""
    losing = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit"}
    for stage in pre:
        removes = stage.get("behavior") == "Removed"
        if stage["type"] in losing or removes:
            raise UnsupportedTokenizer(
                f"words split by {stage['type']}",
                "its pre-tokenizer leaves separators out of every token, so tokens do not spell "
                "the text; expected a pre-tokenizer that keeps all text (Split with behaviour "
                "'isolated')",
            )
