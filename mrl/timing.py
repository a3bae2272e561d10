"""Time of a round's phases."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Phases:
    """Seconds spent in each phase; ``with phases("generate"): ...`` adds to one.

    Parameters
    ----------
    clock : callable
        Reads the time in seconds. Default: wall-clock time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, /) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str, /) -> Iterator[None]:
        """Time the body and add it to phase `name`."""
        start = self.clock()
        try:
            yield
        finally:
            self.seconds[name] += self.clock() - start
