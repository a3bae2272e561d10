"""Seeds of a run's random streams: each a function of (run seed, purpose, round, policy).

Nothing depends on a stream's history, so a resumed run draws what an unbroken one would have.
"""

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for the stream named by `path`; different paths give independent streams."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    state = np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """The stream named by `path`."""
    return np.random.default_rng(derive(seed, *path))


@contextmanager
def seeded_globals(seed: int, /) -> Iterator[None]:
    """Seed Python's and numpy's global generators (32 bits), and restore them afterwards.

    For code of others that draws from them; nothing of this package does.
    """
    state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def own_streams(seed: int, /) -> Iterator[None]:
    """Seed all global generators, torch's too, and restore them afterwards.

    For what draws from them inside a model, dropout above all: it then depends on nothing that was
    drawn before.
    """
    import torch

    devices = range(torch.cuda.device_count())
    with seeded_globals(seed % 2**32), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
