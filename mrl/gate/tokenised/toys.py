"""Small tokenizers of different kinds over the same letters, and worlds made of them.

Source: docs/gate.md.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from mrl.gate.tokenised.policies import TokenPolicy
from mrl.gate.tokenised.world import TokenWorld
from mrl.tokens import ContentEncoder
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer

Kind = Literal["characters", "ab", "ba"]

KINDS: tuple[Kind, ...] = get_args(Kind)
LETTERS = "abc"
# What the two BPE tokenizers merge differs: "ab" has ab and abc, "ba" has ba, cb and bcb.
MERGED_FROM = {"ab": (["ababca", "abcabc", "ab"], 7), "ba": (["bacba", "cbba", "bcb"], 8)}
# The letters of one merge: whether a response holds them does depend on how it is spelled.
SUCCESS = b"ab"


def toy_encoder(kind: Kind, /) -> ContentEncoder:
    """Make a tokenizer over the letters a, b and c: one token each, or a BPE with its own merges.

    Raises
    ------
    ValueError
        If the kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown; expected one of {KINDS}")
    if kind == "characters":
        return ContentEncoder.of(character_tokenizer(LETTERS))
    texts, size = MERGED_FROM[kind]
    return ContentEncoder.of(bpe_tokenizer(texts, size))


def toy_world(
    kinds: Sequence[Kind] = ("characters", "ab"),
    /,
    *,
    max_bytes: int = 4,
    canonical_share: float | None = 0.9,
    spread: float = 0.3,
    seed: int = 0,
) -> TokenWorld:
    """Make a world of random policies, one a kind; a text that holds ``ab`` has reward 1.

    Parameters
    ----------
    kinds : sequence of {"characters", "ab", "ba"}
        Tokenizer of each policy.
    max_bytes, canonical_share, spread
        As for `TokenPolicy.of`, the same for all; the character tokenizer is always canonical.
    seed : int
        Policy i draws its logits from the stream (seed, i).
    """
    policies = [
        TokenPolicy.of(
            toy_encoder(kind),
            np.random.default_rng([seed, i]),
            max_bytes=max_bytes,
            spread=spread,
            canonical_share=canonical_share,
        )
        for i, kind in enumerate(kinds)
    ]
    return TokenWorld.of(policies, lambda text: float(SUCCESS in text))
