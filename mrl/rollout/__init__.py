"""Engines that sample responses, behind one small protocol."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from mrl.exchange.fields import Segment

TokenIds = Sequence[int]
Scorer = Callable[[Sequence[tuple[TokenIds, TokenIds]]], list[NDArray[np.float64]]]
"""The trainer's log-probabilities of responses at the sampling temperature, not truncated, in nats:
one array for each (prompt, response) pair."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """What an engine gives for one response.

    Parameters
    ----------
    ids : tuple of int
        Sampled token ids, the end-of-sequence token included where one was sampled.
    logprobs : ndarray, shape (len(ids),)
        Their log-probabilities at the sampling distribution, in nats; NaN where it has none.
    finished : bool
        Whether the end-of-sequence token was sampled.
    """

    ids: tuple[int, ...]
    logprobs: NDArray[np.float64]
    finished: bool


@dataclass(frozen=True)
class Decoding:
    """The distribution that an engine samples from, and where a response ends.

    Parameters
    ----------
    max_tokens : int
        Longest response, end-of-sequence token included.
    eos_id : int or None
        Token that ends a response; None: every response has `max_tokens` tokens.
    pad_id : int
        Padding token; may equal `eos_id`.
    vocabulary : int
        Token ids below it can be sampled: a model's logits may be wider than its tokenizer.
    temperature : float
        Softmax temperature.
    top_p : float
        Mass of the nucleus that is sampled from; 1: no truncation.
    batch : int
        Responses generated at a time.
    """

    max_tokens: int
    eos_id: int | None
    pad_id: int
    vocabulary: int
    temperature: float = 1.0
    top_p: float = 1.0
    batch: int = 512


Prompts = Sequence[TokenIds]


def parts_of(prompts: Prompts, n: int, batch: int, /) -> list[Prompts]:
    """Prompts of at most `batch` responses together (of one prompt at least), `n` each."""
    size = max(1, batch // n)
    return [prompts[start : start + size] for start in range(0, len(prompts), size)]


class Engine(Protocol):
    """Samples responses with the weights of one model."""

    def generate(self, prompts: Prompts, n: int, seed: int, /) -> list[list[Sampled]]:
        """Sample `n` responses for each prompt; a function of weights, prompts, `n` and `seed`."""

    def sync(self, model: Any, /) -> dict[str, float]:
        """Take over the weights of `model`; returns figures of the check that they arrived.

        Raises
        ------
        RunError
            If they did not arrive; the engine can then not be used any more.
        """

    def close(self) -> None:
        """Give back memory and devices; the engine can then not be used any more."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """One sampled response, exactly as sampled.

    Parameters
    ----------
    ids : tuple of int
        Sampled token ids, the end-of-sequence token included where one was sampled.
    logprobs : ndarray, shape (len(ids),)
        Their log-probabilities at the sampling distribution (temperature and top-p included), in
        nats.
    finished : bool
        True when the end-of-sequence token was sampled, False when the length ran out.
    text : bytes
        The bytes of the content tokens, and of structural tokens as the policy spells them.
    segments : tuple of Segment
        Structural segments in the text. Default: all is plain text.
    """

    ids: tuple[int, ...]
    logprobs: NDArray[np.float64]
    finished: bool
    text: bytes
    segments: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(
                f"rollout has {len(self.ids)} token ids and {len(self.logprobs)} log-probs; "
                "expected one log-prob for each sampled id"
            )

    @property
    def finish_reason(self) -> Literal["eos", "length"]:
        """How the response ended, in the words of the exchange's records."""
        return "eos" if self.finished else "length"
