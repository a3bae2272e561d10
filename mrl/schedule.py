"""Which prompts a round trains on, and what is due after it."""

from collections.abc import Sequence

import numpy as np

from mrl.seeds import generator
from mrl.tasks import Item


def prompts_of(items: Sequence[Item], size: int, seed: int, round: int, /) -> list[Item]:
    """The `size` prompts of a round; each epoch is a fresh permutation, its remainder left out."""
    epoch, position = divmod(round, len(items) // size)
    order = generator(seed, "order", epoch).permutation(len(items))
    return [items[i] for i in np.sort(order[position * size : (position + 1) * size])]


def due(done: int, every: int, total: int, /) -> bool:
    """Whether something scheduled every so many rounds (0: only at the end) is due."""
    return done == total or (every > 0 and done % every == 0)
