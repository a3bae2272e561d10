"""Seeds of a run's random streams: each a function of (run seed, purpose, round, policy).

Nothing depends on a stream's history, so a resumed run draws what an unbroken one would have.
"""

import zlib

import numpy as np


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for the stream named by `path`; different paths give independent streams."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    state = np.random.SeedSequence([seed, *words]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """The stream named by `path`."""
    return np.random.default_rng(derive(seed, *path))
