"""A worker process: scores responses for `mrl.tasks.process`, which starts and ends it.

``python -P -m mrl.tasks.worker SOCKET PROGRESS TIMEOUT MEMORY`` speaks over the file descriptor
SOCKET. It gets a pickled verifier, then pickled lists of jobs. It answers in JSON, which cannot
carry code back: first an empty list (or the verdict that it cannot start), then lists of verdicts,
in order. Into PROGRESS it writes the number of the job that it is at: what it was doing if it ends.

A timer of the operating system bounds each verdict: when it runs out, the process ends, even if
Python cannot take its turn (a regular expression, a power of integers) or the parent is gone.
"""

import json
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from mrl.errors import words_of
from mrl.tasks.verdicts import Job, Verdict, Verify, judge

# Seconds after which verdicts are sent on: messages cost more than cheap verdicts.
FLUSH = 0.01
# Written down between jobs.
IDLE = -1


def main(socket: int, progress: int, timeout: float, memory: int, /) -> None:
    """Serve until the parent closes the socket; `memory` in bytes, 0: no limit."""
    parent = Connection(socket)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        # The parent is trusted: it runs the same configuration.
        verify: Verify = pickle.loads(parent.recv_bytes())  # noqa: S301
        getattr(verify, "prepare", lambda: None)()
    except (Exception, SystemExit) as error:
        _send(parent, [Verdict(None, "exception", words_of(error))])
        return
    _send(parent, [])
    while True:
        try:
            jobs = pickle.loads(parent.recv_bytes())  # noqa: S301
        except EOFError:
            return
        _answer(parent, progress, verify, jobs, timeout)


def _answer(
    parent: Connection, progress: int, verify: Verify, jobs: Sequence[Job], timeout: float, /
) -> None:
    verdicts: list[Verdict] = []
    sent = time.monotonic()
    for number, job in enumerate(jobs):
        note(progress, number)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, timeout)
        verdicts.append(judge(verify, job))
        signal.setitimer(signal.ITIMER_REAL, 0)
        if time.monotonic() - sent > FLUSH:
            _send(parent, verdicts)
            verdicts, sent = [], time.monotonic()
    note(progress, IDLE)
    if verdicts:
        _send(parent, verdicts)


def _send(parent: Connection, verdicts: list[Verdict], /) -> None:
    parent.send_bytes(json.dumps(verdicts).encode())


def note(progress: int, number: int, /) -> None:
    """Write down the number of the job at hand."""
    os.pwrite(progress, number.to_bytes(4, "big", signed=True), 0)


def noted(progress: int, /) -> int:
    """The number of the job at hand; `IDLE` between jobs, and before the first."""
    return int.from_bytes(os.pread(progress, 4, 0) or b"\xff", "big", signed=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
