"""Exceptions that a program's signal handlers raise in the middle of this package's calls.

A handler may raise any exception, often ``TimeoutError`` after ``signal.alarm``, which is an
``OSError``. Such an exception is the program's own, and says nothing about the gateway.
"""

from __future__ import annotations

#: The packages whose functions this package calls where an ``OSError`` tells of the system. A
#: function of another package in the traceback of the error is a signal handler.
_CALLED_PACKAGES = frozenset(
    {"landbridge", "contextlib", "os", "pathlib", "selectors", "socket", "ssl", "subprocess"}
    | {"threading"}
)


def raise_if_from_signal_handler(error: BaseException) -> None:
    """Raises ``error`` again if a signal handler raised it, and not the call that it interrupted.
    To be called in the ``except`` clause that caught the error."""
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.split(".")[0] not in _CALLED_PACKAGES:
            raise error
        trace = trace.tb_next
