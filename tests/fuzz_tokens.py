"""Random byte strings through every published tokenizer: the same bytes, or refused with reason.

Run from the repository root::

    python tests/fuzz_tokens.py                       # 100,000 strings a tokenizer
    python tests/fuzz_tokens.py --strings 1000 qwen

Every kept string is checked against the tokenizer library's own decoding, every refusal against
what the tokenizer is known to lose. Any silent edit or groundless refusal ends the run with 1.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from real_tokenizers import known_losses

from mrl.tokens import ContentEncoder, Unrepresentable, retokenize_batch
from mrl.tokens.published import TOKENIZERS, PackageMissing, load

T = TypeVar("T")
BATCH = 1000
SPELLED = [
    *("<|im_end|>", "</s>", "[INST]", "<think>", "</think>", "<|eot_id|>", "<0xE2>", "<0x0A>"),
    *("<unk>", "<|endoftext|>", "\u2581", "\u2581the", "<tool_call>", "</tool_call>", "##ing"),
    *("\ufffd", "\ufeff", "\u200d", "\u202e", "\u0301", "\u0958", "\uf900", "\u1100\u1161"),
    *("\r\n", "\r", "\x00", "\x1c", "\x7f", "\u0085", "\u2028", "\u00a0", "\u3000", "'s", "'LL"),
]
WORDS = Path(__file__).read_text(encoding="utf-8").split()


STARTS = (0, 0x20, 0xA0, 0x300, 0x900, 0x1100, 0x2000, 0x3040, 0x4E00, 0xF900, 0x1F300)
WIDTHS = (0x60, 0x200, 0x2000, 0x10000)
GAPS = (" ", " ", "  ", "\n", "\n\n", "\t", "\r\n", "", " \n ", "\u00a0")


def one_of(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """One of `choices`, all equally likely."""
    return choices[rng.integers(len(choices))]


def unicode_text(rng: np.random.Generator) -> str:
    """Characters of one or several scripts, controls and unassigned ones among them."""
    low = one_of(rng, STARTS)
    points = rng.integers(low, low + one_of(rng, WIDTHS), size=rng.integers(1, 24))
    return "".join(chr(p) for p in points.tolist() if not 0xD800 <= p < 0xE000)


def prose(rng: np.random.Generator) -> str:
    """Words of a program, joined by white space of all kinds."""
    return "".join(one_of(rng, WORDS) + one_of(rng, GAPS) for _ in range(rng.integers(1, 12)))


def spelled(rng: np.random.Generator) -> str:
    """Texts that spell special tokens, byte pieces and marks, alone and inside others."""
    parts = range(rng.integers(1, 5))
    return "".join(one_of(rng, SPELLED) if rng.random() < 0.6 else prose(rng) for _ in parts)


def numbers(rng: np.random.Generator) -> str:
    """Digits, signs and spaces."""
    return "".join(one_of(rng, "0123456789 +-*/=().,\u0661\u00b2") for _ in range(rng.integers(20)))


def noise(rng: np.random.Generator) -> bytes:
    """Bytes, hardly ever UTF-8; or text with one byte changed, added or lost."""
    if rng.random() < 0.3:
        return rng.bytes(rng.integers(1, 20))
    data = bytearray(unicode_text(rng).encode() or b"a")
    at = int(rng.integers(len(data)))
    data[at : at + int(rng.integers(2))] = rng.bytes(int(rng.integers(2)))
    return bytes(data)


KINDS: tuple[Callable[[np.random.Generator], str | bytes], ...] = (
    *(unicode_text, unicode_text, prose, spelled, spelled, numbers, noise),
)


def strings(rng: np.random.Generator, count: int) -> list[bytes]:
    """A mixture of all kinds."""
    drawn = (one_of(rng, KINDS)(rng) for _ in range(count))
    return [text if isinstance(text, bytes) else text.encode() for text in drawn]


def check(name: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Counts by outcome, and what went wrong."""
    tokenizer = load(name)
    encoder = ContentEncoder.of(tokenizer)
    rng = np.random.default_rng(seed)
    outcomes: Counter[str] = Counter()
    wrong = []
    for start in range(0, count, BATCH):
        batch = strings(rng, min(BATCH, count - start))
        for response, ids in zip(batch, retokenize_batch(batch, encoder), strict=True):
            outcomes[ids.reason if isinstance(ids, Unrepresentable) else "kept"] += 1
            if isinstance(ids, Unrepresentable):
                if ids.reason not in known_losses(name, response):
                    wrong.append(f"{response!r} refused: {ids}")
            elif decoded(tokenizer, ids.tolist()).encode() != response:
                wrong.append(f"{response!r} edited: {ids.tolist()}")
            elif encoder.table.control & {*ids.tolist()}:
                wrong.append(f"{response!r} has control tokens: {ids.tolist()}")
    return outcomes, wrong


def decoded(tokenizer: Any, ids: list[int]) -> str:
    """The library's own reading, control tokens not hidden."""
    if hasattr(tokenizer, "encode_batch"):
        return tokenizer.decode(ids, skip_special_tokens=False)
    return tokenizer.decode(ids)


def main() -> None:
    """Print a row a tokenizer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", default=list(TOKENIZERS))
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    failed = False
    for name in chosen.names:
        begin = time.perf_counter()
        try:
            outcomes, wrong = check(name, chosen.strings, chosen.seed)
        except PackageMissing as missing:
            print(f"{name}: skipped, {missing}")
            continue
        counts = ", ".join(f"{reason} {number}" for reason, number in outcomes.most_common())
        print(f"{name}: {counts}; wrong {len(wrong)}; {time.perf_counter() - begin:.0f} s")
        for line in wrong[:10]:
            print("   ", line)
        failed |= bool(wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
