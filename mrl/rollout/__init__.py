"""Engines that sample responses, behind one small protocol."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mrl.exchange.fields import Segment


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
