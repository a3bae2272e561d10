"""Error text for settings that cannot be right: the name, what was got, what is allowed."""

from typing import Any


def require(condition: bool, name: str, value: Any, allowed: str, /) -> None:
    """Raise ``ValueError`` naming the setting, its value and its allowed range."""
    if not condition:
        raise ValueError(f"{name}={value!r} is not allowed; expected {allowed}")


def is_real(value: Any, /) -> bool:
    """Whether `value` is a plain real number (bool is not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)
