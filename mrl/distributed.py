"""Data parallel: several processes play the same rounds and divide the costly work.

A launcher starts them: ``torchrun --nproc-per-node=2 -m mrl train CONFIG``, or accelerate's. Every
process has all policies and holds the same rollouts, credit and metrics; generation, scoring and
the rows of an update are divided, and gradients are summed. The first process alone verifies and
writes. In a single process nothing of this happens. What is computed does not depend on the number
of processes, except for the order of sums.

Importable without torch.
"""

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mrl.errors import RunError

if TYPE_CHECKING:
    import torch

    from mrl.batch import Assignment, Row

Job = TypeVar("Job")
Result = TypeVar("Result")


@contextmanager
def processes(device: str, /) -> Iterator[None]:
    """Join the processes that a launcher started, if one did, and leave them at the end.

    Parameters
    ----------
    device : str
        The run's device; ``cpu`` chooses how the processes talk to each other.
    """
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu")
    try:
        yield
    finally:
        state.destroy_process_group()


def _world() -> Any:
    """``torch.distributed`` where this process has joined others, else None."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    return torch.distributed if torch.distributed.is_initialized() else None


def count() -> int:
    """Processes that play this run."""
    world = _world()
    return 1 if world is None else int(world.get_world_size())


def rank() -> int:
    """Number of this process, from 0."""
    world = _world()
    return 0 if world is None else int(world.get_rank())


def once(function: Callable[[], Result], /) -> Result:
    """Call `function` in the first process; all get its result, or raise its error."""
    world = _world()
    if world is None:
        return function()
    outcome = [_outcome(function) if rank() == 0 else None]
    world.broadcast_object_list(outcome, src=0)
    return _settle(outcome[0])


def each(function: Callable[[int, Job], Result], jobs: Sequence[Job], /) -> list[Result]:
    """Results of ``function(i, job)`` for all jobs, in order; each is called in one process.

    An error in one process is raised in all.
    """
    world = _world()
    if world is None:
        return [function(i, job) for i, job in enumerate(jobs)]
    mine = range(rank(), len(jobs), count())
    outcomes: list[Any] = [None] * count()
    world.all_gather_object(outcomes, _outcome(lambda: [function(i, jobs[i]) for i in mine]))
    parts = [_settle(outcome) for outcome in outcomes]
    return [parts[i % count()][i // count()] for i in range(len(jobs))]


def share(assignment: "Assignment", /) -> "Assignment":
    """The part of an update that is this process's: other rows lose their weight, and still count.

    Denominators are over all rows, so the parts' gradients add up to the whole's.
    """
    if count() == 1 or not assignment.rows:
        return assignment
    weights = [field.name for field in fields(assignment.rows[0]) if field.name.endswith("_weight")]
    # Rows of one response to a prompt stay together: they are computed once.
    different = {(row.prompt, row.response) for row in assignment.rows if _heavy(row, weights)}
    order = sorted(different, key=lambda pair: (len(pair[1]), pair))  # as many tokens for each
    mine = set(order[rank() :: count()])
    none: dict[str, Any] = dict.fromkeys(weights, 0.0)
    rows = [
        row if (row.prompt, row.response) in mine else replace(row, **none)
        for row in assignment.rows
    ]
    return replace(assignment, rows=rows)


def _heavy(row: "Row", weights: Sequence[str], /) -> bool:
    return any(getattr(row, weight) for weight in weights)


def reduced(
    parameters: Sequence["torch.Tensor"], loss: float, results: list[Result], /
) -> tuple[float, list[Result]]:
    """Sum gradients and loss of the processes' parts of an update; join what they showed."""
    world = _world()
    if world is None:
        return loss, results
    for parameter in parameters:
        if parameter.grad is None:  # this process had no row
            parameter.grad = parameter.new_zeros(parameter.shape)
    for pending in [world.all_reduce(p.grad, async_op=True) for p in parameters]:
        pending.wait()
    parts: list[Any] = [None] * count()
    world.all_gather_object(parts, (loss, results))
    return sum(part[0] for part in parts), [result for part in parts for result in part[1]]


def _outcome(function: Callable[[], Any], /) -> tuple[bool, Any]:
    """Whether `function` returned, and what it returned or raised, fit to be sent."""
    try:
        return True, function()
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        except Exception:
            return False, RunError(f"{type(error).__name__}: {error}")
        return False, error


def _settle(outcome: Any, /) -> Any:
    returned, value = outcome
    if not returned:
        raise value
    return value
