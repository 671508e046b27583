"""Exceptions that a program's signal handlers raise in the middle of this package's calls.

A handler may raise any exception, often ``TimeoutError`` after ``signal.alarm``, which is an
``OSError``. Such an exception is the program's own, and says nothing about the gateway.
"""

from __future__ import annotations

import functools
import signal
from types import CodeType
from typing import Any


def raise_if_from_signal_handler(error: BaseException) -> None:
    """Raises ``error`` again if a signal handler raised it, and not the call that it interrupted.
    To be called in the ``except`` clause that caught the error."""
    codes = {_code_of_handler(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            raise error
        trace = trace.tb_next


def _code_of_handler(handler: Any) -> CodeType | None:
    """Returns the code of a signal handler: of a function, a method, a partial or an object that is
    called. ``None`` for a handler that is not Python's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = type(handler).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
