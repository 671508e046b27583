"""Region files: the program reads them, and this package has no reader of its own."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import landbridge
from landbridge._config import program, region_file
from landbridge._config.region_file import RankChoice
from landbridge._protocol.trainer_tls import TrainerTlsGateway, load_trainer_tls_context

ROOT = Path(__file__).parents[3]
REGION = """
fabric = "fabric.toml"
[gateway.east-0]
socket = "east.sock"
status = "127.0.0.1:9400"
certificate = "east-0.pem"
key = "east-0.key"
ca = "ca.pem"
memory = "64 MiB"
[job.train]
token = "train.token"
memory = "64 MiB"
"""
FABRIC = """
name = "two"
[region.west]
ranks = 1
speeds = [0.5]
[region.west.gateway.west-0]
wan = "127.0.0.1:7500"
egress = "1 Gbit/s"
ingress = "1 Gbit/s"
[region.east]
ranks = 2
[region.east.gateway.east-0]
wan = "127.0.0.1:7400"
egress = "1 Gbit/s"
ingress = "1 Gbit/s"
[link.east-west]
rate = "1 Gbit/s"
rtt = "10 ms"
"""
BOM = "\ufeff"
#: Limit on the time in which a file is refused, in seconds; nobody writes to the pipes.
AT_ONCE_S = 20


@pytest.fixture
def region(tmp_path):
    (tmp_path / "east.toml").write_text(REGION)
    (tmp_path / "fabric.toml").write_text(FABRIC)
    (tmp_path / "train.token").write_text("0f" * 32 + "\n")
    return tmp_path / "east.toml"


def read(path, gateway=None, job=None, choice=None):
    """Returns the location and the rank that a trainer reads from a region file."""
    return region_file.read_region_location(path, gateway, job, choice or RankChoice(0))


def test_a_region_file_names_socket_job_token_and_speeds(region):
    place, rank = read(region)
    assert (place.socket, rank) == (region.parent / "east.sock", 0)
    assert (place.job, place.token) == ("train", bytes([15] * 32))
    assert place.speeds == [1.0, 1.0, 0.5], "in the order of ranks"
    assert place.regions == ["east", "east", "west"]


def test_several_jobs_must_be_chosen_from(region):
    region.write_text(REGION + '[job.zoo]\ntoken = "train.token"\nmemory = "1 MiB"\n')
    with pytest.raises(landbridge.ConfigError, match="choose one with job=: train, zoo"):
        read(region)
    assert read(region, job="zoo")[0].job == "zoo"
    with pytest.raises(landbridge.ConfigError, match="no gateway `west-0`; it has: east-0"):
        read(region, gateway="west-0", job="zoo")


def test_the_gateway_that_serves_the_rank_is_chosen(region):
    one, other = "[region.east.gateway.east-0]\n", "[region.east.gateway.east-1]\nranks = 1\n"
    lan = 'lan = "127.0.0.2:7400"\n'
    fabric = FABRIC.replace(one, f"{other}{lan.replace('2:', '3:')}{one}ranks = 1\n{lan}")
    (region.parent / "fabric.toml").write_text(fabric)
    second = REGION.split("[job.")[0].split("[gateway.east-0]")[1]
    second = second.replace("east.sock", "second.sock").replace("9400", "9401")
    region.write_text(REGION.replace("[job.train]", f"[gateway.east-1]{second}[job.train]"))
    sockets = [read(region, choice=RankChoice(rank))[0].socket.name for rank in (0, 1)]
    assert sockets == ["east.sock", "second.sock"]
    with pytest.raises(landbridge.ConfigError, match="choose one with gateway=: east-0, east-1"):
        read(region, choice=RankChoice(2))


def test_region_and_local_rank_outlast_a_new_region(region):
    """A region whose name sorts first renumbers all ranks, but not the ranks in their regions."""
    choices = [RankChoice(None, "east", 1), RankChoice(None, "west", 0)]
    assert [read(region, choice=choice)[1] for choice in choices] == [1, 2]
    first = FABRIC.split("[region.east]")[1].split("[link")[0]
    first = first.replace("region.east.gateway.east-0", "region.asia.gateway.asia-0")
    link = '[link.asia-east]\nrate = "1 Gbit/s"\nrtt = "10 ms"\n'
    more = f"{FABRIC}{link}[region.asia]{first.replace('7400', '7600')}"
    (region.parent / "fabric.toml").write_text(more)
    assert [read(region, choice=choice)[1] for choice in choices] == [3, 4]
    with pytest.raises(landbridge.ConfigError, match="local ranks 0 to 1"):
        read(region, choice=RankChoice(None, "east", 2))
    with pytest.raises(landbridge.ConfigError, match="no region `north`; it has: asia, east, west"):
        read(region, choice=RankChoice(None, "north", 0))


@pytest.mark.parametrize(
    "wrong",
    [{}, {"rank": 0, "region": "east", "local_rank": 0}, {"region": "east"}, {"local_rank": 0}],
)
def test_a_rank_is_given_by_number_or_by_region(region, wrong):
    with pytest.raises(landbridge.ConfigError, match="either `rank`, or `region` and"):
        landbridge.connect(config=region, **wrong)


def corpus():
    """Yields names, texts of a region file and texts of a fabric file."""
    yield "plain", REGION, FABRIC
    yield "marks", BOM + REGION, BOM + FABRIC
    yield "two marks", BOM + BOM + REGION, FABRIC
    yield "line ends", REGION.replace("\n", "\r\n"), FABRIC.replace("\n", "\r\n")
    yield "dotted", REGION.replace("[job.train]\ntoken", "[job]\ntrain.token", 1), FABRIC
    yield "quoted keys", REGION.replace("[job.train]", '["job"."train"]'), FABRIC
    yield "numbers", REGION, FABRIC.replace("ranks = 2", "ranks = 0x2")
    yield "speeds", REGION, FABRIC.replace("0.5", "inf")
    yield "exponent", REGION, FABRIC.replace("0.5", "5e-1")
    yield "inline", REGION, FABRIC.replace("ranks = 2", "ranks = 2 # two\nspeeds = [1,\n2,]")
    for user in ('"train"', '"-x"', "7", '"4294967295"'):
        yield f"user {user}", REGION.replace("[job", f"user = {user}\n[job"), FABRIC
    yield "no socket", REGION.replace("socket", "sucket"), FABRIC
    yield "no job", REGION.split("[job")[0], FABRIC
    yield "no table", REGION, "region = 1"
    yield "no TOML", "fabric = ", FABRIC
    yield "a boolean", REGION, FABRIC.replace("ranks = 2", "ranks = true")
    yield "empty", "", ""
    for kind, other in (("region_config", FABRIC), ("fabric_config", None)):
        for path in sorted((ROOT / "fuzz/corpus" / kind).iterdir()):
            text = path.read_text("utf-8", "surrogateescape")
            pair = (text, other) if other else (REGION, text)
            yield f"{kind}/{path.name}", *pair
    for path in sorted(ROOT.glob("configs/*region*/*.toml")):
        text = path.read_text("utf-8")
        pair = (REGION, text) if path.name == "fabric.toml" else (text, FABRIC)
        yield f"{path.parent.name}/{path.name}", *pair


CORPUS = list(corpus())


@pytest.mark.parametrize(
    ("region_text", "fabric_text"),
    [item[1:] for item in CORPUS],
    ids=[item[0] for item in CORPUS],
)
def test_trainers_and_gateways_read_the_same_files(region, region_text, fabric_text):
    """A trainer takes what ``landbridge check`` takes, and refuses the rest in its words."""
    for path, text in ((region, region_text), (region.parent / "fabric.toml", fabric_text)):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    command = [program.find_landbridge_program(), "check", "--no-secrets", str(region)]
    checked = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    try:
        config = program.read_config_by_program(region)
    except landbridge.ConfigError as error:
        # A file that has no gateway for its fabric is no region file for `check` either.
        assert checked.returncode == 64
        assert str(error) == checked.stderr.strip()
    else:
        assert checked.returncode == 0, checked.stderr
        assert config["ranks"] and config["gateways"] and config["jobs"]


@pytest.mark.parametrize(
    "text", ["0f", "zz" * 32, "0f" * 31 + "\t\t", BOM + "0f" * 32, "\v" + "0f" * 32, "0f" * 33]
)
def test_a_file_without_a_token_is_refused(region, text):
    (region.parent / "train.token").write_text(text, "utf-8")
    with pytest.raises(landbridge.ConfigError, match="64 hexadecimal digits; make one with"):
        read(region)


def test_a_token_that_all_may_read_is_warned_of(region, caplog):
    token = region.parent / "train.token"
    for mode, warnings in [(0o600, 0), (0o640, 0), (0o644, 1)]:
        token.chmod(mode)
        caplog.clear()
        region_file.read_region_file_token(token)
        assert len(caplog.records) == warnings, oct(mode)
    assert "mode 644" in caplog.text and "chmod 600" in caplog.text


def test_a_missing_token_is_named_once_with_its_job(region):
    token = region.parent / "train.token"
    token.unlink()
    with pytest.raises(landbridge.ConfigError) as raised:
        read(region)
    text = f"token file {token} of job train does not exist; copy it from the host that ran "
    assert str(raised.value) == text + "`landbridge certs`"


def assert_refused_at_once(read_file, words):
    """Asserts that a file is refused by its name before anybody could have written to a pipe."""
    begun = time.monotonic()
    with pytest.raises(landbridge.ConfigError, match=words):
        read_file()
    assert time.monotonic() - begun < AT_ONCE_S


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "long", "missing"])
def test_nobody_waits_for_a_file_that_is_no_regular_file(region, kind):
    path = region.parent / "train.token"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "long":
        path.write_bytes(b"0" * ((1 << 20) + 1))
    words = "train.token.*(not a regular file|longer than 1 MiB|No such file|does not exist)"
    assert_refused_at_once(lambda: read(region), words)
    assert_refused_at_once(lambda: load_trainer_tls_context(TrainerTlsGateway("host", 1, path)), words)


def test_a_pipe_in_place_of_the_region_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "east.toml")
    assert_refused_at_once(lambda: read(tmp_path / "east.toml"), "east.toml: .*not a regular file")


@pytest.mark.parametrize(("line", "user"), [("", None), ('user = "root"', 0), ('user = "7"', 7)])
def test_the_user_of_a_gateway_has_a_number(region, line, user):
    region.write_text(REGION.replace("[job", f"{line}\n[job"))
    assert read(region)[0].user == user


def test_a_user_that_this_host_lacks_is_named(region):
    region.write_text(REGION.replace("[job", 'user = "no-such-user"\n[job'))
    with pytest.raises(landbridge.ConfigError, match="gateway.east-0.user: this host has no user"):
        read(region)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(landbridge.ConfigError, match="nowhere.toml: cannot be read"):
        landbridge.connect(config=tmp_path / "nowhere.toml", rank=0)


def test_a_missing_program_is_named_with_the_remedy(region, monkeypatch):
    monkeypatch.delenv("LANDBRIDGE_BIN", raising=False)
    monkeypatch.setattr(program, "_find_installed_program", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(landbridge.ConfigError, match="install the wheel, or set LANDBRIDGE_BIN"):
        landbridge.connect(config=region, rank=0)
    monkeypatch.setenv("LANDBRIDGE_BIN", str(region.parent / "none"))
    with pytest.raises(landbridge.ConfigError, match="LANDBRIDGE_BIN=.*/none: the program is not"):
        landbridge.connect(config=region, rank=0)


def test_a_reason_is_told_where_sigchld_is_ignored(tmp_path):
    """The system then tells this process the code 0 of every program."""
    path = tmp_path / "nowhere.toml"
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(landbridge.ConfigError, match="nowhere.toml: cannot be read"):
            landbridge.connect(config=path, rank=0)
    finally:
        signal.signal(signal.SIGCHLD, before)


def answer_of_other_program(region, monkeypatch, answer):
    """Makes a program that answers so the one that reads config files."""
    other = region.parent / "program"
    other.write_text(f"#!/bin/sh\ncat <<'EOF'\n{json.dumps(answer)}\nEOF\n")
    other.chmod(0o755)
    monkeypatch.setenv("LANDBRIDGE_BIN", str(other))


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer.update(version=2),
        lambda answer: answer.pop("version"),
        lambda answer: answer.pop("ranks"),
        lambda answer: answer.update(ranks=[]),
        lambda answer: answer.update(jobs={"train": 1}),
        lambda answer: answer["jobs"][0].pop("token"),
        lambda answer: answer["gateways"].append(None),
        lambda answer: answer["gateways"][0].update(user=7),
        lambda answer: answer["ranks"][1].update(speed="fast"),
    ],
)
def test_an_answer_of_another_release_is_refused(region, monkeypatch, change):
    answer = program.read_config_by_program(region)
    with monkeypatch.context() as patch:
        answer_of_other_program(region, patch, answer)
        assert read(region)[0].job == "train"
        change(answer)
        answer_of_other_program(region, patch, answer)
        with pytest.raises(landbridge.ConfigError, match="of another release.*from one wheel"):
            read(region)
        answer_of_other_program(region, patch, [answer])
        with pytest.raises(landbridge.ConfigError, match="of another release.*from one wheel"):
            read(region)


def test_an_unknown_rank_is_refused_before_connecting(region):
    with pytest.raises(landbridge.ConfigError, match="rank 3: the fabric has ranks 0 to 2"):
        landbridge.connect(config=region, rank=3)


@pytest.mark.parametrize(
    "wrong", [{"arena": 1.5}, {"arena": True}, {"arena": None}, {"rank": -1}, {"rank": 0.5}]
)
def test_invalid_sizes_and_ranks_are_refused(region, wrong):
    words = "accepted: .*whole|accepted: a (number|rank of)"
    with pytest.raises(landbridge.ConfigError, match=words):
        landbridge.connect(**{"config": region, "rank": 0, **wrong})


def test_a_gateway_that_is_not_there_is_named(region):
    with pytest.raises(landbridge.NoGateway, match="east.sock"):
        landbridge.connect(config=region, rank=0, arena=4096, timeout=0.3)


class Indexed:
    """An integer of another library, such as one of NumPy."""

    def __index__(self):
        return 9


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [(7, 7), (Indexed(), 9), ("256 MiB", 256 << 20), ("1.5KiB", 1536), ("2 GB", 2 * 10**9)],
)
def test_quantities_of_bytes(text, nbytes):
    assert region_file.parse_region_file_bytes(text, "arena") == nbytes


@pytest.mark.parametrize(
    "text",
    [
        *("", "256", "1 MB/s", "-1 B", "1 mib", 1.5, True, None, 1 << 63, "9" * 400 + " B"),
        pytest.param(10**5000, id="long"),
    ],
)
def test_invalid_quantities_are_refused(text):
    with pytest.raises(landbridge.ConfigError, match="accepted"):
        region_file.parse_region_file_bytes(text, "arena")


def test_the_readme_fits_the_fabric_that_it_deploys():
    """The arenas of a region's ranks fit into the memory of the job there."""
    readme = (ROOT / "README.md").read_text("utf-8")
    (arena,) = re.findall(r'connect\(.*arena="([^"]+)"', readme)
    for name in ("east", "west"):
        path = ROOT / f"configs/two-region/{name}.toml"
        ranks = [rank["region"] for rank in program.read_config_by_program(path)["ranks"]].count(
            name
        )
        (memory,) = re.findall(r'\[job\.train\][^[]*?memory = "([^"]+)"', path.read_text("utf-8"))
        assert ranks * region_file.parse_region_file_bytes(arena, "arena") <= region_file.parse_region_file_bytes(
            memory, "arena"
        )
