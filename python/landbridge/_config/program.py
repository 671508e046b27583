"""The ``landbridge`` program: where it is, and its answers about config files.

This package has no reader of config files. The program reads them, so that trainers and gateways
take the same files with the same meaning, or refuse them in the same words.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .._memory.host_limits import (
    describe_host_limit_error,
    is_host_limit,
    name_host_limits_on_threads,
)
from .._protocol.credential_file import check_credential_file
from .._signal_handlers import raise_if_from_signal_handler
from ..errors import ConfigError, LimitReached

#: The environment variable with the path of the ``landbridge`` program. The program there is run in
#: place of the installed one.
_PROGRAM_VARIABLE = "LANDBRIDGE_BIN"
#: 64: the exit code of the program where a file is wrong. Its standard error then says why;
#: docs/exit-codes.md.
_EXIT_CONFIG = 64
#: 127: the exit code of a program that the system could not load, such as for want of memory or
#: descriptors. Its standard error has the loader's reason.
_EXIT_NOT_LOADED = 127
#: The loader's words for a limit on address space or memory that it has met.
_NO_ROOM_TO_LOAD = ("failed to map segment", "cannot allocate memory")
#: The loader's words for a limit on descriptors that it has met: the number of the error EMFILE.
_NO_DESCRIPTOR_TO_LOAD = f"Error {errno.EMFILE}"
#: 1: the version of the JSON of ``landbridge config`` that this package reads. An answer of another
#: version raises ``ConfigError``: the program is of another release.
_ANSWER_VERSION = 1
#: The lists in the JSON of ``landbridge config`` that this package reads: for each list the fields
#: of an entry, with their types. An answer that lacks one raises ``ConfigError``.
_ANSWER_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "gateways": {"gateway": (str,), "socket": (str,), "user": (str, type(None)), "ca": (str,)},
    "jobs": {"job": (str,), "token": (str,)},
    "ranks": {"region": (str,), "gateway": (str, type(None)), "speed": (int, float)},
}
#: 60 s: the longest time in which the ``landbridge`` program may read config files; then
#: ``ConfigError`` is raised. The time is chosen: the program takes milliseconds.
_READ_TIMEOUT_S = 60.0


def find_landbridge_program() -> str | None:
    """Returns the path of the ``landbridge`` program, or ``None`` where there is none.

    ``LANDBRIDGE_BIN`` names it, or else the wheel that this package came from holds it. A virtual
    environment that is not activated is not on the PATH, which is the last place.

    Raises:
        ConfigError: ``LANDBRIDGE_BIN`` names something else than a program.
    """
    named = os.environ.get(_PROGRAM_VARIABLE)
    if not named:
        return _find_installed_program() or shutil.which("landbridge")
    if shutil.which(named) is None:
        why = "is not there"
        if os.path.isdir(named):
            why = "is a folder"
        elif os.path.exists(named):
            why = "may not be executed by this user"
        text = f"{_PROGRAM_VARIABLE}={named}: the program {why}"
        raise ConfigError(f"{text}; set it to the path of `landbridge`, or unset it")
    return named


def read_config_by_program(path: Path) -> dict[str, Any]:
    """Returns what ``landbridge config --json`` prints about a region file.

    Raises:
        ConfigError: The file has faults, as ``landbridge check`` prints them, or there is no
            program of this release that could read it. A program that ``LANDBRIDGE_BIN`` names is
            told with that name.
        LimitReached: A limit of the system leaves this process no descriptor, or no room for
            another process.
    """
    named = None
    try:
        program = find_landbridge_program()
        # The words for the program in errors.
        named = f"{_PROGRAM_VARIABLE}={program}" if os.environ.get(_PROGRAM_VARIABLE) else program
        if program is None:
            raise ConfigError(
                f"{path}: no `landbridge` program reads config files: it is neither in this "
                "package's environment nor on the PATH; install the wheel, or set LANDBRIDGE_BIN "
                "to its path"
            )
        if path.exists() and not path.is_dir():
            check_credential_file(path)  # The program would wait at a pipe.
        done = subprocess.run(
            # In one word, because a path may begin with a hyphen.
            [program, "config", f"--config={path}", "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_READ_TIMEOUT_S,
        )
    except ConfigError:
        raise
    except OSError as error:
        raise_if_from_signal_handler(error)
        if is_host_limit(error):
            raise LimitReached(f"{path}: {describe_host_limit_error(error)}") from error
        raise ConfigError(f"{path}: {named} cannot read it: {error}") from error
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise ConfigError(f"{path}: {named} cannot read it: {error}") from error
    said = done.stderr.decode("utf-8", "replace").strip()
    other_release = (
        f"{path}: {named} is of another release and cannot read it for this package; install "
        "both from one wheel"
    )
    if "unrecognized subcommand" in said:
        raise ConfigError(other_release)
    if done.returncode < 0:
        # The system ends programs for which a limit on memory leaves no room.
        text = f"{path}: {named} was ended by signal {-done.returncode}"
        raise LimitReached(f"{text}; limits of this process: {name_host_limits_on_threads()}")
    if done.returncode == _EXIT_NOT_LOADED:
        text = f"{path}: {named} could not be loaded: {said}"
        if _NO_DESCRIPTOR_TO_LOAD in said:
            met = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise LimitReached(f"{text}; {describe_host_limit_error(met)}")
        if any(words in said.lower() for words in _NO_ROOM_TO_LOAD):
            raise LimitReached(f"{text}; limits of this process: {name_host_limits_on_threads()}")
    if done.returncode == _EXIT_CONFIG and said:
        raise ConfigError(said)
    if done.returncode > 0:
        text = f"{path}: {named} ended with code {done.returncode}"
        raise ConfigError(f"{text}: {said}" if said else text)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        # A process that ignores SIGCHLD is told the code 0 of every program.
        raise ConfigError(said or f"{path}: {named} gave no answer: {error}") from error
    if not _is_known_program_answer(answer):
        raise ConfigError(other_release)
    return answer


def _is_known_program_answer(answer: Any) -> bool:
    """Returns whether an answer of the program has the version and all lists that this package
    reads. A list has at least one entry, and each entry the fields of ``_ANSWER_FIELDS``."""
    if not isinstance(answer, dict) or answer.get("version") != _ANSWER_VERSION:
        return False
    for name, fields in _ANSWER_FIELDS.items():
        entries = answer.get(name)
        if not entries or not isinstance(entries, list):
            return False
        for entry in entries:
            if not isinstance(entry, dict):
                return False
            if any(not isinstance(entry.get(field), kinds) for field, kinds in fields.items()):
                return False
    return True


def _find_installed_program() -> str | None:
    """Returns the path of the program that was installed with this package; ``None`` if there is
    none, or this user may not execute it."""
    # Imported where it is needed: the import takes as long as the rest of the package.
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("landbridge") or ():
            # Only a program is outside of the package's own folder: `../../../bin/landbridge`.
            if file.name == "landbridge" and file.parts[0] == "..":
                program = Path(str(file.locate())).resolve()
                if os.access(program, os.X_OK) and program.is_file():
                    return str(program)
    return None
