"""Reading certificates, keys and tokens: regular files alone, as the gateway does."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .._memory.host_limits import describe_host_limit_error, is_host_limit
from ..errors import ConfigError, LimitReached, NotPermitted
from .socket_access import describe_denied_socket_access

#: 1 MiB: the longest certificate, key or token file that is read; a longer one raises
#: ``ConfigError``. The limit is chosen, far above any chain's length.
_CREDENTIAL_BYTES_MAX = 1 << 20
#: The advice in the error of a file that this user may not read, in the words of the gateway.
_DENIED_REMEDY = "run it as that user, or let a group of this user read it"


def read_credential_file(path: Path) -> bytes:
    """Returns the bytes of a certificate, key or token file. It never waits for a writer.

    Raises:
        ConfigError: The file cannot be read, is longer than 1 MiB, or is a folder, a device or a
            pipe.
        NotPermitted: This user may not read the file.
        LimitReached: This process has no descriptor or no memory left.
    """
    try:
        check_credential_file(path)
        # A pipe that takes the place of the file now is not waited for either.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            content = file.read(_CREDENTIAL_BYTES_MAX + 1)
    except ConfigError:
        raise
    except PermissionError as error:
        # The owner that counts is that of the file behind a link.
        denied = describe_denied_socket_access(Path(os.path.realpath(path)), "file", _DENIED_REMEDY)
        raise NotPermitted(denied, is_final=True) from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_host_limit(error):
            raise LimitReached(f"{path}: {describe_host_limit_error(error)}") from error
        text = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {text}") from error
    if len(content) > _CREDENTIAL_BYTES_MAX:
        raise ConfigError(f"{path}: cannot be read: longer than 1 MiB, which no such file is")
    return content


def check_credential_file(path: Path) -> None:
    """Raises ``ConfigError`` unless a path leads to a regular file, without opening it: a pipe
    would wait for a writer. Raises ``OSError`` where nothing is there."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ConfigError(f"{path}: cannot be read: not a regular file")
