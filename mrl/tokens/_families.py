"""What a fast tokenizer's serialised form says about the bytes of its tokens.

The tokenizer is read as the specification that the tokenizers library writes
(``Tokenizer.to_str``), never through ``decode``: decoding one id at a time replaces partial
characters and eats prefix spaces.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mrl.errors import InputError
from mrl.tokens._spelling import Spelling

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


MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")
DECODERS = frozenset(
    {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}
)
SPLITS_THAT_LOSE = frozenset(
    {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit"}
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


def pieces_of(spec: Spec, /) -> dict[str, int]:
    """Ids of the model's vocabulary; Unigram models list theirs in order."""
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, Mapping):
        return dict(vocabulary)
    return {piece: index for index, (piece, _) in enumerate(vocabulary)}


def unknown_of(spec: Spec, /) -> int | None:
    """Id that stands for any unknown character, if there is one."""
    model = spec["model"]
    if "unk_id" in model:
        unknown: int | None = model["unk_id"]
        return unknown
    index: int | None = model["vocab"].get(model.get("unk_token"))
    return index


def spelling_of(spec: Spec, /) -> Spelling:
    """Recognise how the pieces of a specification spell bytes.

    Raises
    ------
    UnsupportedTokenizer
        If that cannot be told, or the tokens of a text are random.
    """
    model = spec["model"]
    pre = list(stages(spec, "pre_tokenizer"))
    normalising = list(stages(spec, "normalizer"))
    decoding = list(stages(spec, "decoder"))
    _refuse_model(model)
    _refuse_decoders(model, decoding)
    byte_level = _is_byte_level(pre, normalising, decoding)
    mark = _space_mark(pre, normalising, decoding)
    if byte_level and mark:
        raise UnsupportedTokenizer(
            "byte-level with a mark for spaces",
            f"its pieces are spelled in the byte alphabet and with {mark!r} for a space; expected "
            "one of the two",
        )
    falls_back = bool(model.get("byte_fallback")) or any(
        stage["type"] == "ByteFallback" for stage in decoding
    )
    words = model["type"] == "WordPiece"
    return Spelling(
        family=_name(model["type"], byte_level, mark),
        byte_level=byte_level,
        space_mark=mark,
        byte_pieces=falls_back,
        continuation=model.get("continuing_subword_prefix") if words else None,
        dummy_prefix=words or (mark is not None and _puts_prefix(pre, normalising, mark)),
        losses=(
            *_lost_separators(pre, keeps_words=words or mark is not None),
            *_normalisers(normalising, mark),
        ),
    )


def puts_prefix_itself(spec: Spec, /) -> str | None:
    """Give the mark that a leading Metaspace step puts before text, unless a space is there.

    That makes "a" and " a" the same tokens, where SentencePiece puts the mark before both.
    """
    first = next(stages(spec, "pre_tokenizer"), None)
    if first and first["type"] == "Metaspace" and first["prepend_scheme"] != "never":
        mark: str = first["replacement"]
        return mark
    return None


def _name(kind: str, byte_level: bool, mark: str | None, /) -> str:
    if byte_level:
        return f"byte-level {kind}"
    if mark is not None:
        return f"SentencePiece {kind}"
    return kind if kind == "WordPiece" else f"plain {kind}"


def _refuse_model(model: Mapping[str, Any], /) -> None:
    kind = model["type"]
    if kind not in MODELS:
        raise UnsupportedTokenizer(f"model {kind}", f"expected one of {', '.join(MODELS)}")
    marks = ("continuing_subword_prefix", "end_of_word_suffix")
    for mark in marks if kind == "BPE" else ():
        if model.get(mark):
            raise UnsupportedTokenizer(
                "BPE with word marks",
                f"{mark}={model[mark]!r} is spelled in its pieces but not in the text; expected "
                "spaces to be part of the pieces",
            )
    if model.get("dropout"):
        raise UnsupportedTokenizer(
            f"{kind} with dropout",
            f"dropout={model['dropout']} makes the tokens of a text random; set model.dropout "
            "to None",
        )


def _refuse_decoders(model: Mapping[str, Any], decoding: list[Mapping[str, Any]], /) -> None:
    """Refuse decoders that rewrite pieces in ways which the table would not know of."""
    for stage in decoding:
        kind = stage["type"]
        known = kind in DECODERS
        if kind == "WordPiece":
            known = model["type"] == "WordPiece"
        elif kind == "Strip":
            known = stage["content"] == " " and stage["start"] <= 1 and stage["stop"] == 0
        elif kind == "Replace":
            known = "String" in stage["pattern"] and stage["content"] == " "
        if not known:
            raise UnsupportedTokenizer(
                f"pieces joined by {kind}",
                f"its decoder rewrites pieces when it joins them; expected {sorted(DECODERS)} as "
                "byte-level and SentencePiece tokenizers have them",
            )


def _is_byte_level(
    pre: list[Mapping[str, Any]],
    normalising: list[Mapping[str, Any]],
    decoding: list[Mapping[str, Any]],
    /,
) -> bool:
    """Whether pieces are spelled in the GPT-2 byte alphabet."""
    byte_stages = [stage for stage in pre if stage["type"] == "ByteLevel"]
    # A ByteLevel normaliser spells bytes too; then a pre-tokenizer need not.
    spelled = bool(byte_stages) or any(stage["type"] == "ByteLevel" for stage in normalising)
    if decoding and spelled != any(stage["type"] == "ByteLevel" for stage in decoding):
        raise UnsupportedTokenizer(
            "byte-level with a one-sided byte alphabet",
            "encoding and decoding disagree on whether pieces spell bytes; expected ByteLevel as "
            "pre-tokenizer and as decoder, or as neither",
        )
    if any(stage.get("add_prefix_space") for stage in byte_stages):
        raise UnsupportedTokenizer(
            "byte-level with a prefix space",
            "its pre-tokenizer puts a space before each text, which the text does not have; "
            "expected ByteLevel(add_prefix_space=False)",
        )
    return spelled


def _space_mark(
    pre: list[Mapping[str, Any]],
    normalising: list[Mapping[str, Any]],
    decoding: list[Mapping[str, Any]],
    /,
) -> str | None:
    """Find the character that stands for a space in pieces (U+2581 as a rule), if there is one."""
    put = {stage["replacement"] for stage in pre if stage["type"] == "Metaspace"}
    put |= {stage["content"] for stage in normalising if _marks_spaces(stage)}
    read = {stage["replacement"] for stage in decoding if stage["type"] == "Metaspace"}
    read |= {stage["pattern"]["String"] for stage in decoding if stage["type"] == "Replace"}
    if len(put) > 1 or (decoding and read != put):
        raise UnsupportedTokenizer(
            "SentencePiece with a one-sided mark for spaces",
            f"encoding writes {sorted(put)} for a space and decoding reads {sorted(read)}; "
            "expected the same one character",
        )
    return next(iter(put), None)


def _marks_spaces(stage: Mapping[str, Any], /) -> bool:
    return (
        stage["type"] == "Replace"
        and stage["pattern"] == {"String": " "}
        and len(stage["content"]) == 1
    )


def _puts_prefix(
    pre: list[Mapping[str, Any]], normalising: list[Mapping[str, Any]], mark: str, /
) -> bool:
    """Whether encoding puts a mark before a text that has no space there."""
    return any(
        stage["type"] == "Metaspace" and stage["prepend_scheme"] != "never" for stage in pre
    ) or any(
        stage["type"] == "Prepend" and stage["prepend"] in (mark, " ") for stage in normalising
    )


def _lost_separators(pre: list[Mapping[str, Any]], /, *, keeps_words: bool) -> tuple[str, ...]:
    """Name pre-tokenizers that leave separators out; refuse them where nothing marks words."""
    losing = [
        stage["type"]
        for stage in pre
        if stage["type"] in SPLITS_THAT_LOSE or stage.get("behavior") == "Removed"
    ]
    if losing and not keeps_words:
        raise UnsupportedTokenizer(
            f"words split by {losing[0]}",
            "its pre-tokenizer leaves separators out of every token, so tokens do not spell the "
            "text; expected a pre-tokenizer that keeps all text (Split with behaviour 'isolated')",
        )
    return tuple(f"its pre-tokenizer {kind} leaves white space out" for kind in losing)


def _normalisers(normalising: list[Mapping[str, Any]], mark: str | None, /) -> tuple[str, ...]:
    """Name normalisers that may change text; refuse those that put text in."""
    changing = []
    for stage in normalising:
        kind = stage["type"]
        if kind == "Prepend" and (mark is None or stage["prepend"] not in (mark, " ")):
            raise UnsupportedTokenizer(
                "text put before every text",
                f"its normaliser prepends {stage['prepend']!r}, which no response has; expected no "
                "Prepend normaliser but SentencePiece's",
            )
        if kind not in ("Prepend", "ByteLevel") and not _marks_spaces(stage):
            changing.append(f"its normaliser {kind} changes some characters")
    return tuple(dict.fromkeys(changing))
