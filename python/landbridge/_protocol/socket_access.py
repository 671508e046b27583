"""The judge of a gateway's socket: its folder, and the process that listens there.

A trainer hands the socket its job's token and its memory, so it must not meet a third user's
process there. ``attach_rank`` calls it. The daemon has the same judge, in ``gateway/src/access``.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .. import errors

#: The layout of Linux's ``struct ucred``, which names the process at the other end of a socket:
#: process, user and group.
_PEER_CREDENTIALS = struct.Struct("iII")
#: The advice in the error of a user who may not connect to a gateway's socket, in the words of the
#: gateway.
_DENIED_SOCKET_REMEDY = (
    "run it as that user, or let `group` of the gateway in the region file name a group of "
    "this user"
)

#: The kinds of files that may have the name of a folder, a socket or a lock. Each has the function
#: that knows the kind by a file's mode, and words for errors.
_FILE_KINDS = (
    (stat.S_ISREG, "a regular file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISSOCK, "a socket"),
)


class SocketAccessUsers(NamedTuple):
    """The users whom a trainer trusts with its token: its own, root, and the gateway's."""

    #: The number of the user of this process.
    own: int
    #: The number of the user as whom the region file says that the gateway runs, if it does.
    gateway: int | None

    def include(self, user: int) -> bool:
        """Returns whether the user is trusted."""
        return user in (0, self.own, self.gateway)

    def __str__(self) -> str:
        """Returns the names and numbers of the users, root first, for messages."""
        users = {0: None, self.own: None}
        if self.gateway is not None:
            users[self.gateway] = None
        return ", ".join(map(_socket_user_label, users))


def socket_access_users(gateway: int | None) -> SocketAccessUsers:
    """Returns the users that this process trusts with the socket of a gateway of this user."""
    return SocketAccessUsers(os.geteuid(), gateway)


def check_socket_access_folder(path: Path, trusted: SocketAccessUsers) -> None:
    """Checks that nobody but trusted users can replace the socket. A folder that cannot be examined
    passes, because ``connect`` says why.

    Raises:
        UntrustedSocket: A third user owns the folder, others may write to it and it is not sticky,
            or all users may rename a folder above it.
    """
    try:
        found = path.parent.stat()
    except OSError:
        return
    if not trusted.include(found.st_uid):
        raise errors.UntrustedSocket(
            f"folder {path.parent} of the gateway's socket belongs to user "
            f"{_socket_user_label(found.st_uid)}, who can put another socket there; trusted are "
            f"{trusted}: use a folder that only the gateway's user can make, or name that user in "
            "`user` of the gateway in the region file",
            is_final=True,
        )
    # A group of the owner's own number is taken for its private one.
    group_writes = found.st_mode & stat.S_IWGRP and found.st_gid != found.st_uid
    if (group_writes or found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        raise _open_socket_folder(path.parent, found)
    # Whoever may rename a folder on the way can put another one there.
    for way in (Path(os.path.abspath(path.parent)), path.parent.resolve()):
        for above in way.parents:
            try:
                found = above.stat()
            except OSError:
                continue
            if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
                raise _open_socket_folder(above, found)


def _open_socket_folder(folder: Path, found: os.stat_result) -> errors.UntrustedSocket:
    """Returns the error of a folder in which others than its owner may replace files."""
    return errors.UntrustedSocket(
        f"others may write to folder {folder} (mode {stat.S_IMODE(found.st_mode):04o}, "
        f"group {_socket_group_label(found.st_gid)}) of the gateway's socket, and so put "
        f"another socket there: run `chmod go-w {folder}`, or use another folder",
        is_final=True,
    )


def check_socket_access_place(path: Path) -> None:
    """Checks that the kinds of files at a path allow a gateway to make its socket there. Permissions
    are not checked, and folders that are missing pass.

    Raises:
        NoGateway: Something on the way is no folder, or leads back to itself; or something else
            than a socket has the socket's name, or something else than a file that of its lock.
    """
    for folder in reversed(path.parents):
        try:
            found = folder.stat()
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _no_socket_here(
                    f"folder {folder} of the gateway's socket is a symbolic link that leads back "
                    "to itself: remove the link, or use another folder"
                ) from error
            return  # It may still be made, or hides what is below.
        if not stat.S_ISDIR(found.st_mode):
            raise _no_socket_here(
                f"{folder}, the folder of the gateway's socket, is {_file_kind_label(found)}: move "
                "it away, so that the gateway can make the folder, or use another folder"
            )
    # A link may lead to the socket of a gateway that is starting.
    _check_socket_name(path, "socket", stat.S_ISSOCK, path.stat)
    lock = path.with_name(f"{path.name}.lock")
    _check_socket_name(lock, "lock file", stat.S_ISREG, lock.lstat)


def _check_socket_name(
    path: Path,
    wanted: str,
    is_wanted: Callable[[int], bool],
    examine: Callable[[], os.stat_result],
) -> None:
    """Raises ``NoGateway`` where a name that a gateway needs has another kind of file than the
    ``wanted`` one, or a link back to itself. A name that nothing has passes."""
    try:
        found = examine()
    except OSError as error:
        if error.errno != errno.ELOOP:
            return
        kind = "a symbolic link that leads back to itself"
    else:
        if is_wanted(found.st_mode):
            return
        kind = _file_kind_label(found)
    raise _no_socket_here(
        f"{path} is {kind}, and no gateway can make its {wanted} there: move it away, or give "
        "`socket` in the region file another path"
    )


def _no_socket_here(text: str) -> errors.NoGateway:
    """Returns the error of a place where no gateway can listen before somebody changes a file."""
    return errors.NoGateway(text, is_final=True)


def _file_kind_label(found: os.stat_result) -> str:
    """Returns words for the kind of a file."""
    mode = found.st_mode
    return next((words for is_kind, words in _FILE_KINDS if is_kind(mode)), "a device")


def check_socket_access_peer(path: Path, connected: socket.socket, trusted: SocketAccessUsers) -> None:
    """Checks that a trusted user's process listens at the other end.

    Raises:
        UntrustedSocket: A third user's process listens there. Nothing was sent to it.
    """
    size = _PEER_CREDENTIALS.size
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    user: int = _PEER_CREDENTIALS.unpack(credentials)[1]
    if not trusted.include(user):
        raise errors.UntrustedSocket(
            f"the process that listens at {path} runs as user {_socket_user_label(user)}; trusted "
            f"are {trusted}: no token was sent to it. If it is the gateway, name its user in "
            "`user` of the gateway in the region file",
            is_final=True,
        )


def describe_denied_socket_access(
    path: Path, wanted: str = "socket", remedy: str = _DENIED_SOCKET_REMEDY
) -> str:
    """Returns the text of an access that the system has refused to this user.

    It names the owner, group and mode of ``path``, which is a ``wanted`` thing, or else of the
    nearest folder above it that this user can see. Then it has the ``remedy``. Where nothing is
    visible, it names the path alone.
    """
    for visible in (path, *path.parents):
        try:
            found = visible.lstat()
        except OSError:
            continue
        kind = wanted if visible == path else "folder"
        return (
            f"permission denied: {kind} {visible} belongs to user "
            f"{_socket_user_label(found.st_uid)}, group {_socket_group_label(found.st_gid)}, mode "
            f"{stat.S_IMODE(found.st_mode):03o}, and this process runs as "
            f"user {_socket_user_label(os.geteuid())}; {remedy}"
        )
    return f"permission denied: {path}"


def _socket_user_label(user: int) -> str:
    """Returns a user's name and number, or the number alone where it has no name."""
    try:
        return f"{pwd.getpwuid(user).pw_name} ({user})"
    except KeyError:
        return str(user)


def _socket_group_label(group: int) -> str:
    """Returns a group's name and number, or the number alone where it has no name."""
    try:
        return f"{grp.getgrgid(group).gr_name} ({group})"
    except KeyError:
        return str(group)
