"""Running out of memory, said in the words of the settings that help."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mrl.errors import RunError

# How torch says it on the CPU, where it has no error class of its own.
CPU_MESSAGES = ("can't allocate memory", "not enough memory")


@contextmanager
def memory_for(what: str, way_out: str, /) -> Iterator[None]:
    """Turn the failure to allocate memory into a `RunError` that names the way out.

    Parameters
    ----------
    what : str
        What the memory is for, after "out of memory".
    way_out : str
        What to change.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        found = str(error).strip().splitlines()
        raise RunError(
            f"out of memory {what} ({found[0] if found else 'no details'}); {way_out}, then "
            "continue from the last checkpoint with --resume"
        ) from error


def is_out_of_memory(error: Exception, /) -> bool:
    """Whether an error says that memory could not be allocated, on the CPU or a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(message in str(error) for message in CPU_MESSAGES)
