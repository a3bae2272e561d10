"""Verification on a Ray cluster: tasks on whatever machine has room, each bounded in time.

A task holds its machine's verifier process, with the bounds of `mrl.tasks.workers`; a task whose
machine is lost is given to another.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import ray

from mrl.config import VerificationConfig
from mrl.runtime.waiting import fetch
from mrl.tasks.verdicts import Job, Verdict
from mrl.tasks.workers import Workers


@dataclass(frozen=True)
class RayVerifier:
    """Gives verdicts in tasks; a `Runner`.

    Parameters
    ----------
    verify : bytes
        The verifier, pickled.
    settings : VerificationConfig
        Bounds on each verdict.
    count : int
        Tasks at a time.
    name : str
        The verifier, in messages.
    timeout : float
        Seconds to wait for any of the tasks.
    """

    verify: bytes
    settings: VerificationConfig
    count: int
    name: str
    timeout: float

    def verdicts(self, jobs: Sequence[Job], /) -> list[Verdict]:
        """See `mrl.tasks.task.Runner.verdicts`."""
        size = max(1, -(-len(jobs) // self.count))
        parts = [jobs[start : start + size] for start in range(0, len(jobs), size)]
        who = f"the verifier {self.name!r}"
        calls = [
            (_verdicts.remote(self.verify, self.settings, self.name, part), who) for part in parts
        ]
        return [verdict for part in fetch(calls, self.timeout) for verdict in part]

    def close(self) -> None:
        """Nothing: a task's process ends with Ray's."""


# No core is asked for: on a cluster that is full a task would wait for those who wait for it.
@ray.remote(num_cpus=0, scheduling_strategy="SPREAD", max_retries=3)
def _verdicts(
    verify: bytes, settings: VerificationConfig, name: str, jobs: Sequence[Job]
) -> list[Verdict]:
    return _workers(verify, settings.model_dump_json(), name).verdicts(jobs)


@lru_cache(maxsize=1)
def _workers(verify: bytes, settings: str, name: str) -> Workers:
    """The verifier of the process that this is; started once."""
    chosen = VerificationConfig.model_validate_json(settings)
    return Workers(pickle.loads(verify), chosen, 1, name)  # noqa: S301 (our own bytes)
