"""Waiting for answers from a Ray cluster, never for ever.

A call that cannot be answered any more, because its process, its machine or what it needs is gone,
and one that takes too long, are a `WorkerLost`; what a process raised itself is raised here as if
it had happened here.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from mrl.errors import InputError, RunError

# Seconds between looks at whether the machines are still there.
LOOK = 1.0


class WorkerLost(RunError):
    """A process of a run on a cluster is gone, or does not answer."""


Call = tuple[Any, str]
"""A reference to an answer, and words for whom it is expected from."""


def fetch(
    calls: Sequence[Call], timeout: float, alive: Callable[[], None] = lambda: None, /
) -> list[Any]:
    """Results of several calls, in their order; the first error ends the wait.

    Parameters
    ----------
    calls : sequence of (ObjectRef, str)
        See `Call`.
    timeout : float
        Seconds in which at least one of those that are missing must come.
    alive : callable, optional
        Raises where waiting makes no sense any more; called every second.

    Raises
    ------
    WorkerLost
        If an answer cannot come, or does not come in time.
    Exception
        What a call raised.
    """
    found = gather(calls, timeout, alive, math.inf)
    return [found[one] for one, _ in calls]


def gather(
    calls: Sequence[Call], timeout: float, alive: Callable[[], None], patience: float, /
) -> dict[Any, Any]:
    """Results of several calls by reference, of those that come within `patience` seconds.

    All else is as for `fetch`.
    """
    missing, found = dict(calls), {}
    begin = heard = time.monotonic()
    while missing and (left := begin + patience - time.monotonic()) > 0:
        ready, _ = ray.wait(list(missing), num_returns=1, timeout=min(LOOK, left))
        for one in ready:
            found[one] = _result(one, missing.pop(one))
            heard = time.monotonic()
        if not ready:
            alive()
            if time.monotonic() > heard + timeout:
                names = ", ".join(dict.fromkeys(missing.values()))
                raise WorkerLost(
                    f"{names}: no answer within {timeout:g} s. It hangs, or has more to do than "
                    "that: then give it longer with --worker-timeout"
                )
    return found


def _result(call: Any, who: str, /) -> Any:
    try:
        return ray.get(call)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RayTaskError):  # of a call that this one made
            cause = cause.cause
        if isinstance(cause, InputError | RunError):
            raise cause from None
        if isinstance(cause, RayError):
            raise _lost(who, cause) from None
        raise cause from error
    except RayError as error:
        raise _lost(who, error) from None


def _lost(who: str, error: RayError, /) -> WorkerLost:
    words = " ".join(str(error).split())
    return WorkerLost(f"{who} is lost ({type(error).__name__}: {words[:300]})")
