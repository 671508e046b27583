"""Trainers refuse sockets of third users, and say whose a socket is that they may not use."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

import landbridge
from landbridge._protocol import attach
from landbridge._protocol.socket_access import (
    SocketAccessUsers,
    check_socket_access_folder,
    describe_denied_socket_access,
    socket_access_users,
)
from landbridge._protocol.wire import LOCAL_PROTOCOL_VERSION, Attach

#: A user that no test runs as.
THIRD_USER = 3_999_999_999
REQUEST = Attach(LOCAL_PROTOCOL_VERSION, 0, 4096, b"\x0f" * 32, "train")
#: Limit on each wait, in seconds.
DEADLINE_S = 30.0


@pytest.fixture
def listener(tmp_path):
    """A listening socket in a folder of this user."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.settimeout(DEADLINE_S)
        listening.bind(str(tmp_path / "east.sock"))
        listening.listen()
        yield listening


def attach_empty_arena(path, trusted):
    """Attaches a rank with an empty arena."""
    fd = os.memfd_create("arena")
    try:
        return attach.attach_rank(path, fd, REQUEST, time.monotonic() + DEADLINE_S, trusted)
    finally:
        os.close(fd)


def test_a_third_users_process_gets_no_token(tmp_path, listener, monkeypatch):
    # The folder passes, since only the process runs as a third user.
    monkeypatch.setattr(attach, "check_socket_access_folder", lambda path, trusted: None)
    monkeypatch.setattr(SocketAccessUsers, "include", lambda self, user: user == self.own)
    with pytest.raises(landbridge.UntrustedSocket, match="no token was sent"):
        attach_empty_arena(tmp_path / "east.sock", SocketAccessUsers(THIRD_USER, None))
    accepted, _ = listener.accept()
    with accepted:
        accepted.settimeout(DEADLINE_S)
        assert accepted.recv(1 << 16) == b""


def test_the_own_users_process_gets_the_token(tmp_path, listener):
    received = []

    def receive_and_close():
        accepted, _ = listener.accept()
        with accepted:
            received.append(accepted.recv(1 << 16))

    thread = threading.Thread(target=receive_and_close)
    thread.start()
    with pytest.raises(landbridge.NoGateway, match="ended the connection"):
        attach_empty_arena(tmp_path / "east.sock", socket_access_users(None))
    thread.join()
    assert received and received[0]


def test_a_folder_of_a_third_user_is_refused(tmp_path):
    if os.geteuid() == 0:
        os.chown(tmp_path, THIRD_USER, -1)
        stranger = socket_access_users(None)
    else:
        stranger = SocketAccessUsers(THIRD_USER, None)
    with pytest.raises(landbridge.UntrustedSocket, match="belongs to user .*trusted are root"):
        check_socket_access_folder(tmp_path / "east.sock", stranger)
    check_socket_access_folder(tmp_path / "east.sock", SocketAccessUsers(os.geteuid(), tmp_path.stat().st_uid))


def test_a_third_users_socket_folder_is_named(tmp_path, monkeypatch):
    """Nothing listens there, and a new gateway would refuse the folder as well."""
    folder = tmp_path / "run"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, THIRD_USER, -1)
    else:
        monkeypatch.setattr(SocketAccessUsers, "include", lambda self, user: user == 0)
    owner = folder.stat().st_uid
    for is_there in (False, True):
        if is_there:
            # A socket that nobody listens at.
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(folder / "east.sock"))
        with pytest.raises(landbridge.UntrustedSocket) as raised:
            attach_empty_arena(folder / "east.sock", socket_access_users(None))
        text = str(raised.value)
        assert text.startswith(f"folder {folder} of the gateway's socket belongs to user ")
        assert str(owner) in text and "landbridge run" not in text
        assert raised.value.is_final


def test_an_empty_folder_of_a_trusted_user_awaits_a_gateway(tmp_path):
    with pytest.raises(landbridge.NoGateway, match="start it with `landbridge run`"):
        attach_empty_arena(tmp_path / "east.sock", socket_access_users(None))


def link_to_itself(path):
    """Makes a symbolic link that leads to itself."""
    path.symlink_to(path.name)


OBSTACLES = {
    "folder that is a loop": ("run", link_to_itself, "run .* leads back to itself: remove"),
    "folder that is a file": ("run", Path.touch, "run, the folder .* is a regular file: move it"),
    "folder that is a pipe": ("run", os.mkfifo, "run, the folder .* is a pipe: move it"),
    "socket that is a file": ("run/east.sock", Path.touch, "east.sock is a regular file.*socket"),
    "socket that is a folder": ("run/east.sock", Path.mkdir, "east.sock is a folder"),
    "socket that is a loop": ("run/east.sock", link_to_itself, "east.sock is .* back to itself"),
    "lock that is a folder": ("run/east.sock.lock", Path.mkdir, "east.sock.lock is a folder.*its lock"),
    "lock that is a pipe": ("run/east.sock.lock", os.mkfifo, "east.sock.lock is a pipe"),
    "lock that is a loop": ("run/east.sock.lock", link_to_itself, "east.sock.lock is a symbolic"),
}


@pytest.mark.parametrize("kind", OBSTACLES)
def test_a_place_without_a_possible_socket_is_named(tmp_path, kind):
    name, make, words = OBSTACLES[kind]
    if "/" in name:
        (tmp_path / "run").mkdir()
    make(tmp_path / name)
    with pytest.raises(landbridge.NoGateway, match=f"{tmp_path}/(run/)?{words}") as raised:
        attach_empty_arena(tmp_path / "run" / "east.sock", socket_access_users(None))
    assert raised.value.is_final and "landbridge run" not in str(raised.value)


@pytest.mark.parametrize("is_folder", [False, True])
def test_control_characters_of_a_socket_path_are_escaped(tmp_path, is_folder):
    path = tmp_path / "na\x1b[2Kme" / "east.sock"
    if is_folder:
        path.mkdir(parents=True)
    with pytest.raises(landbridge.NoGateway) as raised:
        attach_empty_arena(path, socket_access_users(None))
    assert r"na\x1b[2Kme" in str(raised.value) and "\x1b" not in str(raised.value)


def test_files_of_an_ended_gateway_keep_none_away(tmp_path):
    (tmp_path / "east.sock.lock").write_text("pid = 1")
    (tmp_path / "east.sock").symlink_to("not-there-yet.sock")
    with pytest.raises(landbridge.NoGateway, match="start it with `landbridge run`"):
        attach_empty_arena(tmp_path / "east.sock", socket_access_users(None))


@pytest.mark.parametrize(
    ("mode", "is_good"), [(0o700, True), (0o755, True), (0o1777, True), (0o777, False)]
)
def test_a_folder_that_others_write_must_be_sticky(tmp_path, mode, is_good):
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(mode)
    if is_good:
        return check_socket_access_folder(folder / "east.sock", socket_access_users(None))
    with pytest.raises(landbridge.UntrustedSocket, match="chmod go-w"):
        check_socket_access_folder(folder / "east.sock", socket_access_users(None))


def test_a_denied_socket_names_its_user_and_group(tmp_path, listener):
    (tmp_path / "east.sock").chmod(0o600)
    text = describe_denied_socket_access(tmp_path / "east.sock")
    assert text.startswith(f"permission denied: socket {tmp_path}/east.sock belongs to user ")
    assert "group " in text and "mode 600" in text
    hidden = describe_denied_socket_access(tmp_path / "below" / "east.sock")
    assert f"folder {tmp_path} belongs to user" in hidden


def test_a_refused_connection_is_no_missing_gateway(tmp_path, listener, monkeypatch):
    if os.geteuid() != 0:
        (tmp_path / "east.sock").chmod(0)
    else:
        # The system refuses root nothing.
        class DeniedSocket(socket.socket):
            def connect(self, address):
                raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(attach.socket, "socket", DeniedSocket)
    with pytest.raises(landbridge.NotPermitted, match="denied: socket .* mode") as raised:
        attach_empty_arena(tmp_path / "east.sock", socket_access_users(None))
    assert "landbridge run" not in str(raised.value)
