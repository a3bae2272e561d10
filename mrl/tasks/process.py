"""One worker process as the trainer sees it: start it, give it jobs, hear it, end it."""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import IO, TYPE_CHECKING

from mrl.errors import LONGEST
from mrl.tasks.verdicts import Job, Verdict
from mrl.tasks.worker import noted

if TYPE_CHECKING:
    from mrl.config import VerificationConfig

MODULE = "mrl.tasks.worker"
# Seconds within which a process must have imported what its verifier needs.
START = 120.0
# Seconds after the process's own timer at which it is ended: verifiers can disarm timers.
GRACE = 2.0
# Bytes of a verdict: JSON writes up to 6 for a character.
LONGEST_VERDICT = 6 * LONGEST + 100


@dataclass(eq=False)
class Worker:
    """A process, and the jobs (numbers of the caller's) that it has been given.

    Parameters
    ----------
    process : subprocess.Popen
        Leader of a session of its own.
    connection : Connection
        Socket to it.
    progress : file
        Where it notes what it is doing.
    timeout : float
        Seconds a verdict may take.
    deadline : float
        Monotonic time by which it must have said something.
    ready : bool
        Whether it has started.
    given, answered : list of int, int
        Its current jobs, and how many of them have verdicts.
    lost : Verdict
        How it ended, as the verdict on the job that it was at; its reason is empty while it lives.
    culprit : int or None
        That job; None where it was at none.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    progress: IO[bytes]
    timeout: float
    deadline: float
    ready: bool = False
    given: list[int] = field(default_factory=list)
    answered: int = 0
    lost: Verdict = Verdict(None)
    culprit: int | None = None

    @classmethod
    def start(cls, settings: "VerificationConfig", /) -> "Worker":
        """Start a process; the verifier is to be sent to its connection."""
        ours, theirs = Pipe()
        progress = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        memory = (settings.memory or 0) << 20
        files = [theirs.fileno(), progress.fileno()]
        with theirs:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", MODULE, *map(str, (*files, settings.timeout, memory))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=files,
                start_new_session=True,
                env=_environment(),
            )
        return cls(process, ours, progress, settings.timeout, time.monotonic() + START)

    @property
    def missing(self) -> list[int]:
        """Its jobs without verdicts."""
        return self.given[self.answered :]

    def give(self, numbers: Sequence[int], jobs: Sequence[Job], /) -> None:
        """Give an idle process jobs."""
        self.given, self.answered = list(numbers), 0
        self._postpone()
        self.send(pickle.dumps([jobs[number] for number in numbers]))

    def send(self, content: bytes, /) -> None:
        """Send the process its verifier, or jobs; it is ended if it is gone."""
        try:
            self.connection.send_bytes(content)
        except OSError:
            self.end()

    def hear(self) -> dict[int, Verdict]:
        """Read what the process says: verdicts on jobs; it is ended if it makes no sense."""
        most = LONGEST_VERDICT * max(len(self.missing), 1)
        try:
            verdicts = [
                Verdict(None if reward is None else float(reward), str(reason), str(detail))
                for reward, reason, detail in json.loads(self.connection.recv_bytes(most))
            ]
        except (EOFError, OSError, ValueError, TypeError):
            self.end()
            return {}
        if not self.ready:
            self.ready = not verdicts
            if verdicts:
                self.end(why=verdicts[0].detail)
        self._postpone()
        answers = dict(zip(self.missing, verdicts, strict=False))
        self.answered += len(answers)
        return answers

    def _postpone(self) -> None:
        self.deadline = time.monotonic() + self.timeout + GRACE

    def end(self, *, late: bool = False, why: str = "") -> None:
        """Kill the process and whatever it has started; fills in `lost` and `culprit`."""
        if self.lost.reason:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        self.connection.close()
        status = self.process.wait()
        with self.progress:
            place = noted(self.progress.fileno())
        if self.answered <= place < len(self.given):
            self.culprit = self.given[place]
        late = late or status == -signal.SIGALRM
        spent = f"no verdict within {self.timeout} s" if self.ready else f"not within {START:.0f} s"
        self.lost = Verdict(
            None,
            "timeout" if late else "crash",
            why or (spent if late else f"its process ended ({_words(status)})"),
        )


def _words(status: int, /) -> str:
    """How a process ended."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _environment() -> dict[str, str]:
    """The process's environment: our modules, one thread, the same hashes in every process."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    modules = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {"PYTHONHASHSEED": "0"} | dict(os.environ) | threads | {"PYTHONPATH": modules}
