"""Errors that end a command with one clear message and no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class InputError(Exception):
    """The user's input cannot be right; the command ends with exit code 2."""

    exit_code = 2


class PromptTooLong(InputError):
    """A prompt that with the longest response exceeds a policy's context."""


class RunError(Exception):
    """A run could not go on; the command ends with exit code 1 and loses nothing stored."""

    exit_code = 1


# What CUDA's and the processor's allocators say; their errors share no class but RuntimeError.
OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


@contextmanager
def memory_bound(what: str, way_out: str, /) -> Iterator[None]:
    """Turn running out of memory into a RunError.

    Parameters
    ----------
    what : str
        What was being computed, with its size.
    way_out : str
        The setting to lower.

    Raises
    ------
    RunError
        In place of an allocator's error; any other passes.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error).lower()
        if not isinstance(error, MemoryError) and not any(words in said for words in OUT_OF_MEMORY):
            raise
        raise RunError(f"{what} does not fit into memory; {way_out}") from error
