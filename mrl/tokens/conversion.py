"""Tokenizer files of several formats, read as tokenizers that `mrl.tokens` takes."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrl.errors import PackageMissing
from mrl.tokens._gguf import metadata_of
from mrl.tokens._spelling import byte_alphabet


def from_ranks(
    ranks: Mapping[bytes, int],
    pattern: str,
    special: Sequence[str],
    added: Sequence[str] = (),
    /,
    *,
    special_first: bool = False,
    composing: bool = False,
) -> Any:
    """Make a byte-level BPE tokenizer of tiktoken's ranks.

    Parameters
    ----------
    ranks : mapping of bytes to int
        Rank of each token, which is also its id.
    pattern : str
        Regular expression of the pieces that merges stay inside of.
    special, added : sequence of str
        Control tokens, and further tokens that are found whole in text but are no control.
    special_first : bool
        Special tokens have the first ids (and all ranks follow them), not the last.
    composing : bool
        Texts are brought to NFC first.

    Returns
    -------
    tokenizers.Tokenizer
        With the same ids as tiktoken for any text.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as pre

    letters = [letter for _, letter in sorted((v, k) for k, v in byte_alphabet().items())]
    first = len(special) if special_first else 0
    vocabulary = {token: i for i, token in enumerate(special)} if special_first else {}
    vocabulary |= {_written(token, letters): first + rank for token, rank in ranks.items()}
    # tiktoken joins the pair whose union has the lowest rank, however the union is cut.
    merges = [
        (_written(token[:cut], letters), _written(token[cut:], letters))
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    if composing:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(pattern), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return tokenizer


def _written(token: bytes, letters: Sequence[str], /) -> str:
    """Spell bytes in the byte alphabet, whose letters come by value."""
    return "".join(map(letters.__getitem__, token))


def _tiktoken_ranks(path: Path, /) -> dict[bytes, int]:
    rows = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in rows}


# \p{N} keeps digits apart in Qwen's, {1,3} takes them in threes in Llama's.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *(f"<|{kind}_{end}|>" for kind in ("object_ref", "box", "quad") for end in ("start", "end")),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_QWEN_ADDED = (
    *("<tool_call>", "</tool_call>"),
    *(f"<|fim_{kind}|>" for kind in ("prefix", "middle", "suffix", "pad")),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)


def qwen(path: Path, /) -> Any:
    """Qwen3: NFC, digits apart, think and tool tags that are not marked special."""
    pattern = _WORDS % ""
    ranks = _tiktoken_ranks(path)
    return from_ranks(ranks, pattern, _QWEN_SPECIAL, _QWEN_ADDED, composing=True)


def llama3(path: Path, /) -> Any:
    """Llama 3.1: digits in threes, 256 control tokens after the vocabulary."""
    named = {
        **{0: "begin_of_text", 1: "end_of_text", 4: "finetune_right_pad_id", 5: "step_id"},
        **{6: "start_header_id", 7: "end_header_id", 8: "eom_id", 9: "eot_id", 10: "python_tag"},
        11: "image",
    }
    numbers = iter(range(256))
    special = [
        f"<|{named[i]}|>" if i in named else f"<|reserved_special_token_{next(numbers)}|>"
        for i in range(256)
    ]
    return from_ranks(_tiktoken_ranks(path), _WORDS % "{1,3}", special)


def tekken(path: Path, /) -> Any:
    """Mistral's Tekken: the first ids are control tokens, and the vocabulary is cut to size."""
    data = json.loads(path.read_text(encoding="utf-8"))
    config = data["config"]
    count = config["default_num_special_tokens"]
    named = (
        *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
        *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        "[TOOL_CONTENT]",
    )
    special = [*named, *(f"<SPECIAL_{i}>" for i in range(len(named), count))]
    ranks = {
        base64.b64decode(entry["token_bytes"]): entry["rank"]
        for entry in data["vocab"][: config["default_vocab_size"] - count]
    }
    return from_ranks(ranks, config["pattern"], special, special_first=True)


def smollm2(path: Path, /) -> Any:
    """Read SmolLM2 out of its GGUF file: byte-level BPE that keeps digits apart."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from tokenizers import pre_tokenizers as pre

    about = metadata_of(path)
    pieces = about["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in about["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        AddedToken(piece, normalized=False)
        for piece, kind in zip(pieces, about["tokenizer.ggml.token_type"], strict=True)
        if kind == 3
    ]
    tokenizer.add_special_tokens(control)
    return tokenizer


def as_it_is(path: Path, /) -> Any:
    """Read the library's own format."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def sentencepiece(path: Path, /) -> Any:
    """Read a SentencePiece model.

    Raises
    ------
    PackageMissing
        If the sentencepiece library is not installed.
    """
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise PackageMissing(
            f"{path.name} is a SentencePiece model; expected the library to be installed: "
            "pip install sentencepiece"
        ) from error
    return SentencePieceProcessor(model_file=str(path))
