"""Arguments of ``connect`` that cannot be used: each is told by its name, its value and the
remedy."""

import contextlib
import os
import re
import shutil
import tempfile
import traceback
from pathlib import Path

import pytest

import landbridge
from landbridge._config import program
from landbridge._protocol.credential_file import read_credential_file

#: A user who owns no file here.
NOBODY = 65_534
#: The arguments of a rank at a gateway that does not exist, without a config.
REMOTE = {
    "address": "tls://127.0.0.1:1",
    "rank": 0,
    "job": "train",
    "ca": "ca.pem",
    "token": "train.token",
}


class Named(os.PathLike):
    """A path of another library."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


WRONG_PATHS = [3, True, b"east.toml", "", "a\0b", Named(b"east.toml"), ["east.toml"]]


@pytest.mark.parametrize("value", WRONG_PATHS)
@pytest.mark.parametrize("name", ["config", "ca", "token"])
def test_a_wrong_path_is_named_with_its_value(name, value):
    words = f"^{name} .+: accepted: the path of a file"
    with pytest.raises(landbridge.ConfigError, match=words):
        landbridge.connect(**{**REMOTE, name: value})


def test_a_path_of_another_library_is_read(tmp_path):
    path = tmp_path / "east.toml"
    with pytest.raises(landbridge.ConfigError, match="east.toml: cannot be read"):
        landbridge.connect(config=Named(str(path)), rank=0)


@pytest.mark.parametrize(
    "value", ["x", "ab", b"ab", 3, True, (), ("a.pem",), ("a.pem", "a.key", "b.key"), {"a", "b"}]
)
def test_an_identity_is_a_certificate_and_its_key(value):
    words = "^identity .+: accepted: two paths: of a certificate and of its key"
    with pytest.raises(landbridge.ConfigError, match=words):
        landbridge.connect(**REMOTE, identity=value)
    for part in WRONG_PATHS:
        with pytest.raises(landbridge.ConfigError, match="^identity .+: accepted: the path"):
            landbridge.connect(**REMOTE, identity=("a.pem", part))


@pytest.mark.parametrize("value", [3, True, b"train", "\ud800", "x" * 64, "x" * 70_000, ["train"]])
@pytest.mark.parametrize("name", ["gateway", "job"])
def test_a_wrong_name_is_named_with_its_value(name, value):
    for others in (REMOTE, {"config": "east.toml", "rank": 0}):
        with pytest.raises(landbridge.ConfigError, match=f"^{name} .+: accepted: the name of a"):
            landbridge.connect(**{**others, name: value})


@pytest.mark.parametrize("value", [True, "0", 0.0, -1, 1 << 32])
def test_a_wrong_rank_is_named_with_its_value(value):
    for name, others in (("rank", {}), ("local_rank", {"region": "east"})):
        words = f"^{name} {value!r}: accepted: a rank of the .*, from 0 on$"
        with pytest.raises(landbridge.ConfigError, match=words):
            landbridge.connect(config="east.toml", **others, **{name: value})
    with pytest.raises(landbridge.ConfigError, match="^region .+: accepted: the name of a region"):
        landbridge.connect(config="east.toml", region=3, local_rank=0)


@pytest.mark.parametrize("value", [True, "big", 1.5, None, -1, 1 << 63, b"1 MiB"])
def test_a_wrong_arena_is_named_with_its_value(value):
    with pytest.raises(landbridge.ConfigError, match="^arena .+: accepted: (a number|sizes)"):
        landbridge.connect(**REMOTE, arena=value)


@pytest.mark.parametrize("value", [3, True, b"tls://host:1", ["tls://host:1"], "host:1"])
def test_a_wrong_address_is_named_with_its_value(value):
    with pytest.raises(landbridge.ConfigError, match="^address .+: accepted: tls://HOST:PORT"):
        landbridge.connect(**{**REMOTE, "address": value})


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("missing", "is not there"),
        ("folder", "is a folder"),
        ("text", "may not be executed by this user"),
    ],
)
def test_the_variable_of_the_program_is_named(tmp_path, monkeypatch, kind, why):
    path = tmp_path / "landbridge"
    if kind == "folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("no program")
    monkeypatch.setenv("LANDBRIDGE_BIN", str(path))
    with pytest.raises(landbridge.ConfigError) as raised:
        landbridge.connect(config="east.toml", rank=0)
    text = f"LANDBRIDGE_BIN={path}: the program {why}; set it to the path of `landbridge`, or "
    assert str(raised.value) == f"{text}unset it"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/sh\nexit 1", "ended with code 1"),
        ("#!/bin/sh\necho 'unknown option' >&2; exit 2", "ended with code 2: unknown option"),
        ("#!/bin/sh\necho east", "gave no answer"),
        ("#!/bin/sh\necho '{}'", "is of another release"),
        ("\0", "cannot read it: .*Exec format error"),
        ("#!/nowhere/sh\n", "cannot read it: .*No such file"),
    ],
)
def test_another_program_is_named_with_its_variable(tmp_path, monkeypatch, script, words):
    path = tmp_path / "landbridge"
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setenv("LANDBRIDGE_BIN", str(path))
    with pytest.raises(landbridge.ConfigError, match=f"^east.toml: LANDBRIDGE_BIN={path} {words}"):
        landbridge.connect(config="east.toml", rank=0)


def test_a_program_on_the_path_may_be_named_without_folder(tmp_path, monkeypatch):
    path = tmp_path / "other-landbridge"
    path.write_text("#!/bin/sh\nexit 3")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LANDBRIDGE_BIN", "other-landbridge")
    assert program.find_landbridge_program() == "other-landbridge"
    with pytest.raises(landbridge.ConfigError, match="ended with code 3"):
        landbridge.connect(config="east.toml", rank=0)


@pytest.fixture
def open_folder():
    """A folder that every user may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def without_permission(path):
    """Lets this process meet a path as a user who may not read it."""
    path.chmod(0o700 if path.is_dir() else 0o600)
    if os.geteuid() != 0:
        path.chmod(0)
        yield
        return path.chmod(0o700)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("linked", [False, True])
def test_the_owner_of_an_unreadable_file_is_named(open_folder, linked):
    path = real = open_folder / "train.token"
    real.write_text("0f" * 32)
    if linked:
        path = open_folder / "link.token"
        path.symlink_to(real)
    owner = f"user {owner_label(real)}, group "
    with without_permission(real):
        with pytest.raises(landbridge.NotPermitted) as raised:
            read_credential_file(path)
    text = str(raised.value)
    assert text.startswith(f"permission denied: file {real} belongs to {owner}"), text
    assert "and this process runs as user " in text
    assert text.endswith("run it as that user, or let a group of this user read it")
    assert raised.value.is_final


def test_a_closed_folder_of_a_token_names_its_owner(open_folder):
    folder = open_folder / "keys"
    folder.mkdir()
    (folder / "train.token").write_text("0f" * 32)
    with without_permission(folder):
        words = f"permission denied: folder {folder} belongs to user {owner_label(open_folder)}"
        with pytest.raises(landbridge.NotPermitted, match=re.escape(words)):
            read_credential_file(folder / "train.token")


@pytest.mark.parametrize("name", ["token", "ca", "identity"])
def test_connect_tells_who_owns_each_file_of_credentials(open_folder, name):
    path = open_folder / "secret"
    path.write_text("x")
    token = open_folder / "train.token"
    token.write_text("0f" * 32)
    token.chmod(0o644)
    value = (str(path), str(path)) if name == "identity" else path
    given = {**REMOTE, "token": token, "ca": certificate_of_a_ca(open_folder), name: value}
    with without_permission(path):
        with pytest.raises(landbridge.NotPermitted, match=f"file {path} belongs to user"):
            landbridge.connect(**given, arena=4096, timeout=1)


def certificate_of_a_ca(folder):
    """Returns the path of a certificate that ``landbridge certs`` makes."""
    fabric, keys = folder / "fabric.toml", folder / "keys"
    if not keys.exists():
        fabric.write_text(
            'name = "one"\n[region.east]\nranks = 1\n[region.east.gateway.east-0]\n'
            'wan = "127.0.0.1:7400"\negress = "1 Gbit/s"\ningress = "1 Gbit/s"\n'
        )
        words = [program.find_landbridge_program(), "certs", "--fabric", str(fabric), "--out", str(keys)]
        assert os.spawnv(os.P_WAIT, words[0], words) == 0
        (keys / "ca.pem").chmod(0o644)
        keys.chmod(0o755)
    return keys / "ca.pem"


def owner_label(path):
    """Returns name and number of the owner of a path, as errors have them."""
    return f"{path.owner()} ({path.stat().st_uid})"


#: A name with the sequence by which terminals erase a line, and a byte that is no UTF-8.
ODD_NAME = os.fsdecode(b"na\x1b[2K\xffme")


@pytest.mark.parametrize("name", ["config", "ca", "token"])
def test_control_characters_of_a_path_are_escaped(tmp_path, name):
    """The text goes to a terminal, which would obey them."""
    odd, plain = tmp_path / ODD_NAME, tmp_path / "token"
    plain.write_text("0f" * 32)
    given = {**REMOTE, "ca": plain, "token": plain}
    if name == "config":
        given = {"rank": 0}
    given[name] = odd
    with pytest.raises(landbridge.ConfigError) as raised:
        landbridge.connect(timeout=1, **given)
    for text in (str(raised.value), traceback.format_exception_only(raised.type, raised.value)[0]):
        assert "\x1b" not in text and "\udcff" not in text, ascii(text)
    if name != "config":  # The program tells of a config in its own words.
        assert r"na\x1b[2K\udcffme" in str(raised.value)
