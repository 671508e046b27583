"""The errors of wrong arguments, and how they show the argument."""

from __future__ import annotations

import reprlib
from typing import Any

from .errors import ConfigError


def argument_error(name: str, value: Any, accepted: str) -> ConfigError:
    """Returns the error for an argument with a wrong value."""
    return ConfigError(f"{name} {describe_argument_in_error(value)}: accepted: {accepted}")


def describe_argument_in_error(value: Any) -> str:
    """Returns an argument as Python writes it, shortened in the middle where it is long."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits.
        return "a number of thousands of digits"
