"""What two runs wrote, compared."""

from typing import Any

import pytest


def assert_same(mine: Any, other: Any) -> None:
    """Equal, numbers up to rounding."""
    if isinstance(mine, dict):
        assert_same(list(mine.items()), list(other.items()))
    elif isinstance(mine, list | tuple):
        for one, two in zip(mine, other, strict=True):
            assert_same(one, two)
    elif isinstance(mine, float):
        assert mine == pytest.approx(other, rel=1e-9, abs=1e-12)
    else:
        assert mine == other
