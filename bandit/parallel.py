"""Independent pieces of one computation, on several processes and with a progress bar."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import joblib
from rich.progress import track

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def mapped(
    function: Callable[[Piece], Result],
    pieces: Iterable[Piece],
    /,
    *,
    total: int,
    n_jobs: int,
    progress: bool,
    description: str,
) -> Iterator[Result]:
    """Yield ``function(piece)`` for each piece, in order.

    Parameters
    ----------
    function : callable
        Sent to the processes by value, so that functions and sharing rules that were defined in a
        notebook will do.
    pieces : iterable
        What it is called with.
    total : int
        How many there are.
    n_jobs : int
        Processes; 1: this one. Results do not depend on it. -1: one for each core.
    progress : bool
        Show a progress bar, in a terminal or a notebook.
    description : str
        Its label.
    """
    jobs = joblib.Parallel(n_jobs=n_jobs, return_as="generator", pre_dispatch="2*n_jobs")
    results = jobs(joblib.delayed(function)(piece) for piece in pieces)
    if progress:
        results = track(results, description=description, total=total)
    yield from results


def checked_jobs(n_jobs: int, /) -> int:
    """Check a number of processes and return it.

    Raises
    ------
    ValueError
        If it is neither a whole number >= 1 nor -1.
    """
    if not isinstance(n_jobs, int) or isinstance(n_jobs, bool) or not (n_jobs >= 1 or n_jobs == -1):
        raise ValueError(f"n_jobs={n_jobs!r} is not allowed; expected a number >= 1, or -1")
    return n_jobs
