"""A worker process: scores responses for `mrl.tasks.workers`, which starts and ends it.

``python -P -m mrl.tasks.worker FD TIMEOUT MEMORY`` speaks over the socket FD. It gets a pickled
verifier, then pickled lists of jobs; it answers in JSON, which cannot carry code back: first
whether it is ready (a verdict without a reason that it is not), then one verdict a job.

A timer of the operating system bounds each verdict: when it runs out, the process ends, even if
Python cannot take its turn (a regular expression, a power of integers) or the parent is gone.
"""

import json
import pickle
import resource
import signal
import sys
from multiprocessing.connection import Connection

from mrl.tasks.verdicts import Verdict, Verify, judge, words_of


def main(fd: int, timeout: float, memory: int, /) -> None:
    """Serve until the parent closes the socket; `memory` in bytes, 0: no limit."""
    parent = Connection(fd)
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
        parent.send_bytes(json.dumps(Verdict(None, "exception", words_of(error))).encode())
        return
    parent.send_bytes(json.dumps(Verdict(None)).encode())
    serve(parent, verify, timeout)


def serve(parent: Connection, verify: Verify, timeout: float, /) -> None:
    """Answer lists of jobs."""
    while True:
        try:
            jobs = pickle.loads(parent.recv_bytes())  # noqa: S301
        except EOFError:
            return
        for job in jobs:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, timeout)
            verdict = judge(verify, job)
            signal.setitimer(signal.ITIMER_REAL, 0)
            parent.send_bytes(json.dumps(verdict).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
