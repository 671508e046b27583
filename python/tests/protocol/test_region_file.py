"""Region files, and the small TOML reader for Python before 3.11."""

import random
import re
import sys
from pathlib import Path

import pytest

import landbridge
from landbridge._config import region_file, toml

CONFIGS = Path(__file__).parents[3] / "configs"
REGION = """
fabric = "fabric.toml"
[gateway.east-0]
socket = "east.sock"
[job.train]
token = "train.token"
"""
FABRIC = """
[region.west]
ranks = 1
speeds = [0.5]
[region.east]
ranks = 2
"""


@pytest.fixture
def region(tmp_path):
    (tmp_path / "east.toml").write_text(REGION)
    (tmp_path / "fabric.toml").write_text(FABRIC)
    (tmp_path / "train.token").write_text("0f" * 32 + "\n")
    return tmp_path / "east.toml"


def test_a_region_file_names_socket_job_token_and_speeds(region):
    place = region_file.read_location(region, None, None)
    assert place.socket == region.parent / "east.sock"
    assert (place.job, place.token) == ("train", bytes([15] * 32))
    assert place.speeds == [1.0, 1.0, 0.5], "in the order of ranks"
    assert place.regions == ["east", "east", "west"]


def test_several_gateways_or_jobs_must_be_chosen_from(region):
    region.write_text(REGION + '[job.zoo]\ntoken = "train.token"\n')
    with pytest.raises(landbridge.ConfigError, match="choose one with job=: train, zoo"):
        region_file.read_location(region, None, None)
    assert region_file.read_location(region, None, "zoo").job == "zoo"
    with pytest.raises(landbridge.ConfigError, match="no gateway `west-0`; it has: east-0"):
        region_file.read_location(region, "west-0", "zoo")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("east.toml", "fabric = ", "east.toml"),
        ("east.toml", REGION.replace("socket", "sucket"), "gateway.east-0.socket: missing"),
        ("east.toml", REGION.replace("[job.train]", "[jab.train]"), "job: missing"),
        ("fabric.toml", "name = 'x'", "region: missing"),
        ("fabric.toml", FABRIC.replace("ranks = 2", "ranks = '2'"), "region.east.ranks"),
        ("fabric.toml", FABRIC.replace("ranks = 2", "ranks = true"), "region.east.ranks"),
        ("fabric.toml", "[region]\nwest = 1", "region.west: accepted: a table"),
        ("fabric.toml", FABRIC.replace("0.5", "true"), "region.west.speeds"),
        ("fabric.toml", FABRIC.replace("0.5", "0.5, 1"), "region.west.speeds"),
        ("east.toml", REGION.replace("[job", 'user = "-x"\n[job'), "gateway.east-0.user: accepted"),
        ("east.toml", REGION.replace("[job", "user = 7\n[job"), "gateway.east-0.user: accepted"),
        ("east.toml", REGION.replace("[job", 'user = "4294967295"\n[job'), "number up to"),
        ("east.toml", REGION.replace("[job", 'user = "no-such-user"\n[job'), "has no user"),
        ("train.token", "0f", "64 hexadecimal digits"),
        ("train.token", "zz" * 32, "64 hexadecimal digits"),
    ],
)
def test_an_error_names_the_file_and_key_at_fault(region, file, text, words):
    (region.parent / file).write_text(text)
    with pytest.raises(landbridge.ConfigError, match=words):
        region_file.read_location(region, None, None)


@pytest.mark.parametrize(("line", "user"), [("", None), ('user = "root"', 0), ('user = "7"', 7)])
def test_the_user_of_a_gateway_has_a_number(region, line, user):
    region.write_text(REGION.replace("[job", f"{line}\n[job"))
    assert region_file.read_location(region, None, None).user == user


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(landbridge.ConfigError, match="nowhere.toml: cannot be read"):
        landbridge.connect(config=tmp_path / "nowhere.toml", rank=0)


def test_an_unknown_rank_is_refused_before_connecting(region):
    with pytest.raises(landbridge.ConfigError, match="rank 3: the fabric has ranks 0 to 2"):
        landbridge.connect(config=region, rank=3)


@pytest.mark.parametrize(
    "wrong", [{"arena": 1.5}, {"arena": True}, {"arena": None}, {"rank": -1}, {"rank": 0.5}]
)
def test_invalid_sizes_and_ranks_are_refused(region, wrong):
    with pytest.raises(landbridge.ConfigError, match="accepted: .*whole|accepted: a number"):
        landbridge.connect(**{"config": region, "rank": 0, **wrong})


def test_a_gateway_that_is_not_there_is_named(region):
    with pytest.raises(landbridge.NoGateway, match="east.sock"):
        landbridge.connect(config=region, rank=0, arena=4096, timeout=0.3)


@pytest.mark.parametrize(
    ("text", "nbytes"), [(7, 7), ("256 MiB", 256 << 20), ("1.5KiB", 1536), ("2 GB", 2 * 10**9)]
)
def test_quantities_of_bytes(text, nbytes):
    assert region_file.parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "256", "1 MB/s", "-1 B", "1 mib"])
def test_invalid_quantities_are_refused(text):
    with pytest.raises(landbridge.ConfigError, match="accepted"):
        region_file.parse_bytes(text)


#: The region files of every deployment that the repository shows.
EXAMPLES = sorted(CONFIGS.glob("*region*/*.toml"))

needs_tomllib = pytest.mark.skipif(sys.version_info < (3, 11), reason="nothing to compare with")


@needs_tomllib
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_the_small_reader_reads_the_example_configs(path):
    import tomllib

    assert toml.loads(path.read_text()) == tomllib.loads(path.read_text())


def test_the_small_reader_reads_arrays_over_lines_and_inline_tables():
    text = "a = [ # one\n  { at = '07:00', b.c = 1 },\n\n  { },\n] # two\n[d]\ne = [1,\n2]"
    assert toml.loads(text) == {"a": [{"at": "07:00", "b": {"c": 1}}, {}], "d": {"e": [1, 2]}}
    for wrong, words in [
        ("\n\na = { b = 1,\n}", "line 3: neither"),
        ("a = { b = 1 }\n[a.c]", "line 2: `a` is a value"),
        ("a = { b = 1, b = 2 }", "key `b` twice"),
        ("a = [1,\n2", "line 1: an array that does not end"),
    ]:
        with pytest.raises(toml.TomlError, match=words):
            toml.loads(wrong)


#: Lines of which a random TOML text consists.
TOML_LINES = [
    *("[a]", "[a.b]", "[ c . d ]", "[[x]]", "x = 1", "y = 1_000", "x.y = 2.5e3", "z = -0.5"),
    *('s = "a\\tb"', "s = 'a\\b'", 's = "é # no comment"', 't = """x"""', "u = '''x'''", "# c"),
    *("b = true", "b = false # c", "l = [1, 2,]", "l = ['a', \"b\"]", "l = [1", "]", "", "  "),
    *("d = 2020-01-01", "h = 0x10", "i = inf", "k = {a = 1}", '"q" = 1', "x = 01", "x 1", "= 1"),
    *('s = "a" b', "n = 1__0", "n = 1.", "n = .5", "n = +3", 's = "\\q"', 's = "\\u0041"'),
    *("k = {}", "k = { a.b = 1, a.c = [{ d = 2 }, {}] } # c", "k = { a = 1, }"),
    *("k = { a = 1", "k = { a = 1 b = 2 }", "k = { a = { b = 1 }, a.c = 2 }", "k.b = 1", "[k]"),
    *("[k.a]", "}", "m = [ # ]", "{ e = 'f, g' },", "1, 2", ", 3", '"]", # c'),
    *("m = [{ a = 1 },", "[4,", "k = [{ a = 1 }, ]"),
]


@needs_tomllib
def test_the_small_reader_never_reads_otherwise_than_the_standard_one():
    import tomllib

    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    read = 0
    for _ in range(20_000):
        text = "\n".join(rng.choices(TOML_LINES, k=rng.randrange(1, 6)))
        try:
            ours = toml.loads(text)
        except toml.TomlError:
            continue
        try:
            theirs = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            # This reader accepts some faulty files, which `landbridge check` refuses.
            continue
        assert ours == theirs, text
        read += 1
    assert read > 1000


def test_the_readme_fits_the_fabric_that_it_deploys():
    """The arenas of a region's ranks fit into the memory of the job there."""
    root = Path(__file__).parents[3]
    readme = (root / "README.md").read_text("utf-8")
    (arena,) = re.findall(r'connect\(.*arena="([^"]+)"', readme)
    fabric = region_file._read_toml_file(root / "configs/two-region/fabric.toml")
    ranks = {name: region["ranks"] for name, region in sorted(fabric["region"].items())}
    for name, count in ranks.items():
        job = region_file._read_toml_file(root / f"configs/two-region/{name}.toml")["job"]["train"]
        assert count * region_file.parse_bytes(arena) <= region_file.parse_bytes(job["memory"])
