"""One verdict: what a verifier says of a response, or why it says nothing."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mrl.errors import words_of

if TYPE_CHECKING:
    from mrl.tasks.task import Item

Job: TypeAlias = "tuple[Item, bytes, bool]"
"""Item, response, and whether the response ended by itself."""

Verify: TypeAlias = "Callable[[Item, bytes, bool], float | None]"
"""``verify(item, response, finished)``: reward in [0, 1], or None where none could be found."""


class Verdict(NamedTuple):
    """What is known of a response.

    Parameters
    ----------
    reward : float or None
        None: not verified.
    reason : str
        Why not: ``timeout``, ``crash`` (the worker process ended), ``memory``, ``exception``, or
        ``none`` (the verifier gave no number). Empty where it is verified.
    detail : str
        The same in words, for messages.
    """

    reward: float | None
    reason: str = ""
    detail: str = ""


def judge(verify: Verify, job: Job, /) -> Verdict:
    """Score one response; whatever the verifier raises, the run goes on."""
    try:
        reward = verify(*job)
        if reward is not None and not math.isnan(reward):
            return Verdict(float(reward))
    except MemoryError as error:
        return Verdict(None, "memory", words_of(error))
    except (Exception, SystemExit) as error:
        # A verifier meets text that its author did not foresee.
        return Verdict(None, "exception", words_of(error))
    return Verdict(None, "none", f"the verifier returned {reward}")
