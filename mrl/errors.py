"""Errors that end a command with one clear message and no traceback."""

import re
from pathlib import Path

# Characters of another library's error that a message or a verdict keeps.
LONGEST = 300
# Where an object lies in memory, as its repr says it.
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")

# Where ``mrl demo`` writes what it makes, unless it is told otherwise.
DEMO = "runs/demo"


class InputError(Exception):
    """The user's input cannot be right; the command ends with exit code 2."""

    exit_code = 2


class PackageMissing(InputError):
    """A package that the input asks for is not installed."""


class PromptTooLong(InputError):
    """A prompt that with the longest response exceeds a policy's context."""


class RunError(Exception):
    """A run could not go on; the command ends with exit code 1 and loses nothing stored."""

    exit_code = 1


def words_of(error: BaseException, /) -> str:
    """Type and text of an error, on one short line that is the same in every process."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return ADDRESS.sub("0x...", words)[:LONGEST]


def cannot_read(path: str | Path, error: OSError, /) -> str:
    """Say that a file cannot be read, why, and from where a relative path was followed."""
    words = f"cannot read {path}: {error.strerror}"
    if isinstance(error, FileNotFoundError) and not Path(path).is_absolute():
        words += f", looked for from {Path.cwd()}"
        if Path(path).is_relative_to(DEMO):
            words += " (mrl demo writes it; start it in the same folder)"
    return words
