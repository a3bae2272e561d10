"""Verifiers of the user's own: any function, named as ``module:function``."""

import importlib
import math
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from operator import attrgetter
from typing import Any

from mrl.seeds import seeded_globals
from mrl.tasks.task import Item


@dataclass(frozen=True)
class FunctionVerifier:
    """Scores responses by ``function(question, answer, response, finished)``.

    The function gets question, right answer and response as text (bytes that are not UTF-8 as
    U+FFFD) and whether the response ended by itself. It returns a reward in [0, 1], True or False,
    or None where it has no verdict; anything else, and any exception, is no verdict either. It is
    called with Python's and numpy's global generators seeded by item and response, so that a
    function that draws from them gives the same response the same reward.

    Parameters
    ----------
    name : str
        ``module:function``; modules are found as ``python -m`` finds them: installed, or in the
        folder that the run was started in.
    """

    name: str

    def prepare(self) -> None:
        """Import the function.

        Raises
        ------
        ImportError, AttributeError, TypeError
            If there is no such module, no such name in it, or it cannot be called.
        """
        _ = self.function

    @cached_property
    def function(self) -> Callable[[str, str, str, bool], Any]:
        """The function itself."""
        module, _, path = self.name.partition(":")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        function = attrgetter(path)(importlib.import_module(module))
        if not callable(function):
            raise TypeError(
                f"{self.name} is {type(function).__name__}; expected a function of (question, "
                "answer, response, finished)"
            )
        return function

    def __call__(self, item: Item, response: bytes, finished: bool, /) -> float | None:
        """Reward of a response.

        Raises
        ------
        TypeError, ValueError
            If the function returns no number, or one outside [0, 1].
        """
        text = response.decode("utf-8", "replace")
        with seeded_globals(zlib.crc32(response, zlib.crc32(item.prompt_id.encode()))):
            value = self.function(item.question, item.answer, text, finished)
        if value is None:
            return None
        if not isinstance(value, Real) and type(value).__name__ not in ("bool", "bool_"):
            raise TypeError(
                f"{self.name} returned {value!r:.80}; expected a number in [0, 1], True, False "
                "or None"
            )
        reward = float(value)
        if not (0.0 <= reward <= 1.0 or math.isnan(reward)):
            raise ValueError(f"{self.name} returned {reward}; expected a number in [0, 1]")
        return reward
