"""Libraries that only some tasks need."""

import importlib
from typing import Any

from mrl.errors import InputError


def library(module: str, needed_by: str, /) -> Any:
    """Import a module of a library.

    Raises
    ------
    InputError
        If it, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{needed_by} needs the package {error.name!r}, which is not installed; install "
            "mutual-rl[train]"
        ) from None
