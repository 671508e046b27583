"""Ranks that attach over TLS, as from another host, beside ranks that share memory."""

import contextlib
import gc
import os
import ssl
import time
from pathlib import Path

import pytest

import landbridge
from conftest import DEADLINE_S, call_for_all, exit_code_of_fork, resource_usage, wait_until
from landbridge._local_regions import LocalRegions
from landbridge._protocol.trainer_tls import (
    TrainerTlsGateway,
    load_trainer_tls_context,
    trainer_tls_error,
)

numpy = pytest.importorskip("numpy")

#: A key whose pass phrase nobody knows.
ENCRYPTED_KEY = """
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhjpMYEfFXUtAICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEH9RwzkzVlI21aiq+4sD6JkEgZDr
Dlp0qAk4AW6B6GUBHUaraT2KnzDiOUfiyHD6Lc/0qBKcqesNJB+XfrTLXjyBuEAx
6giOeQt1b9r4CvXEcHJwLAKwONQc/tbY35TptHLLldZL8GMA2sM+Ma25yIOhd+7v
djipVCjARUdzPpmmRbivzLxLRP+b4nXAObnC1f8InsgNFffyjClEk+GYLKcUMm8=
-----END ENCRYPTED PRIVATE KEY-----
"""
#: Several pieces of f32, of which the last is short.
ELEMENTS = 300_007


@contextlib.contextmanager
def serving_regions(more="", **options):
    """Yields regions whose gateways serve other hosts, and their addresses by region."""
    regions, addresses = LocalRegions(**options), {}
    for region in regions.ranks:
        port, file = regions.claim_port_block(), regions.region_file(region)
        addresses[region] = f"tls://127.0.0.1:{port}"
        keys = f'attach = "127.0.0.1:{port}"\n{more}\nstatus ='
        file.write_text(file.read_text().replace("status =", keys, 1))
    with regions:
        yield regions, addresses


def connect(regions, address, rank, **options):
    """Attaches a rank over TLS without a config."""
    keys = regions.folder / "keys"
    options = {"ca": keys / "ca.pem", "token": keys / "train.token", **options}
    return landbridge.connect(address, rank=rank, job="train", arena="8 MiB", timeout=60, **options)


@contextlib.contextmanager
def mixed_groups(regions, addresses):
    """Yields three ranks: over TLS without a config, by the socket, and over TLS with a config."""

    def attach(rank):
        config = regions.region_file_of_rank(rank)
        if rank == 0:
            return connect(regions, addresses["east"], 0)
        address = addresses["west"] if rank == 2 else None
        return landbridge.connect(address, config=config, rank=rank, arena="8 MiB", timeout=60)

    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(group) for group in call_for_all(range(3), attach)]


@pytest.fixture(scope="module")
def serving():
    """Regions whose gateways serve other hosts, east with two ranks."""
    with serving_regions(ranks=(2, 1)) as running:
        yield running


@pytest.fixture
def groups(serving):
    """Three ranks that attach in different ways."""
    with mixed_groups(*serving) as all_ranks:
        yield all_ranks


def test_ranks_over_tls_and_by_sockets_get_the_same_bits(groups):
    rng = numpy.random.default_rng(1)
    inputs = [rng.standard_normal(ELEMENTS).astype("float32") for _ in groups]
    results = call_for_all(groups, lambda group: group.all_reduce(inputs[group.rank], "sum"))
    assert len({result.tobytes() for result in results}) == 1
    numpy.testing.assert_allclose(results[0], sum(inputs), rtol=1e-5, atol=1e-5)
    for root in range(3):
        results = call_for_all(
            groups, lambda group, root=root: group.broadcast(inputs[group.rank], root)
        )
        assert all(result.tobytes() == inputs[root].tobytes() for result in results)
        results = call_for_all(
            groups, lambda group, root=root: group.reduce(inputs[group.rank], root, "sum")
        )
        assert [result is not None for result in results] == [rank == root for rank in range(3)]
        numpy.testing.assert_allclose(results[root], sum(inputs), rtol=1e-5, atol=1e-5)
    call_for_all(groups, lambda group: group.barrier())
    call_for_all(groups, lambda group: group.commit(1))
    assert [group.committed_step for group in groups] == [1, 1, 1]


def test_arrays_in_the_arena_are_sent_as_they_are(groups):
    def step(group):
        array = group.empty(1000, "float32")
        for turn in range(3):
            array[:] = group.rank + turn
            operations = [group.all_reduce_async(array, "sum") for _ in range(4)]
            sums = [operation.wait() for operation in operations]
            for operation in operations:
                operation.wait_free()
            assert all((result == 3 + 3 * turn).all() for result in sums)
        return group.all_reduce(array, "sum", out=array)

    assert all((result == 9).all() for result in call_for_all(groups, step))


def resident_bytes(process):
    """Returns the memory of a process that is in use."""
    pages = int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_steps_over_tls_leak_nothing(serving, groups):
    gateways = serving[0].process_ids()

    def usage():
        gc.collect()
        return resource_usage(readers=3), [resident_bytes(process) for process in gateways]

    def steps(group, count):
        array = numpy.ones(4096, "float32")
        for step in range(count):
            out = group.empty(4096, "float32") if step % 2 else None
            assert group.all_reduce_async(array, "sum", out=out).wait(DEADLINE_S)[0] == 3

    call_for_all(groups, lambda group: steps(group, 100))
    before, gateways_before = usage()
    call_for_all(groups, lambda group: steps(group, 1000))
    after, gateways_after = usage()
    assert after["descriptors"] == before["descriptors"]
    assert after["threads"] == before["threads"]
    # 1,000 results of 16 KiB for each of two ranks over TLS would take 32 MB.
    assert after["rss"] - before["rss"] < 4 << 20
    grown = [now - before for now, before in zip(gateways_after, gateways_before)]
    # Two ranks of a gateway would leave 32 MB; its allocator may keep some of what was freed.
    assert max(grown) < 8 << 20
    # The last contributions are free once other regions have what they need of them.
    wait_until(lambda: [group._arena.used_bytes for group in groups] == [0, 0, 0])


def test_speeds_are_known_with_a_config_only(groups):
    assert [group.world_size for group in groups] == [3, 3, 3]
    assert groups[2].batch_shares(30) == groups[1].batch_shares(30)
    with pytest.raises(landbridge.ConfigError, match="connect` with `config"):
        groups[0].batch_share(30)
    assert call_for_all(groups, lambda group: group.agree(7)) == [7, 7, 7]


def test_a_forked_process_leaves_the_connection_alone(groups):
    def use_group():
        with pytest.raises(landbridge.ForkedProcess):
            groups[0].all_reduce(numpy.ones(3, "float32"))
        groups[0].close()

    assert exit_code_of_fork(use_group) == 0
    ones = numpy.ones(1000, "float32")
    results = call_for_all(groups, lambda group: group.all_reduce(ones, "sum"))
    assert all((result == 3).all() for result in results)


def test_no_token_goes_to_a_gateway_without_its_name(serving, tmp_path):
    regions, addresses = serving
    with LocalRegions() as others:
        other_ca = tmp_path / "other.pem"
        other_ca.write_bytes((others.folder / "keys/ca.pem").read_bytes())
    for options, words in (
        ({"ca": other_ca}, "the CA of this gateway's deployment"),
        ({"gateway": "west-0"}, "gateway `west-0` is wanted"),
    ):
        with pytest.raises(landbridge.UntrustedSocket, match=words) as caught:
            connect(regions, addresses["east"], 0, **options)
        assert caught.value.is_final
    wrong = tmp_path / "wrong.token"
    wrong.write_text("07" * 32)
    with pytest.raises(landbridge.Refused, match="no such job, or a wrong token"):
        connect(regions, addresses["east"], 0, token=wrong)


def test_arguments_that_do_not_fit_are_refused(serving):
    regions, addresses = serving
    for options, words in (
        ({"ca": "/nowhere/ca.pem"}, "/nowhere/ca.pem: cannot be read: .*No such file"),
        ({"ca": regions.folder / "keys/train.token"}, "train.token: no certificate of a CA"),
        ({"token": "/nowhere/train.token"}, "/nowhere/train.token of job train does not exist"),
        ({"identity": ("/nowhere/a.pem", "/nowhere/a.key")}, "/nowhere/a.pem: cannot be read"),
        ({"token": None}, "needed: `rank`, `job`, `ca` and `token`"),
    ):
        with pytest.raises(landbridge.ConfigError, match=words):
            connect(regions, addresses["east"], 0, **options)
    for address in ("", "tls://host", "tcp://host:1", "/run/east.sock", "tls://::1:7480"):
        with pytest.raises(landbridge.ConfigError, match="accepted: tls://HOST:PORT"):
            connect(regions, address, 0)
    with pytest.raises(landbridge.ConfigError, match="accepted: `config`, or an address"):
        landbridge.connect(rank=0)
    config = regions.region_file("east")
    with pytest.raises(landbridge.ConfigError, match="ca 'ca.pem': accepted with an address only"):
        landbridge.connect(config=config, rank=0, ca="ca.pem")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("pipe", "pipe: cannot be read: not a regular file"),
        ("locked.key", "locked.key: the key is encrypted; accepted: a PEM key without a pass"),
        ("keys/west-0.key", "west-0.key: no certificate with its key"),
        ("keys/train.token", "train.token: no certificate with its key"),
    ],
)
def test_a_key_that_cannot_be_read_at_once_is_refused(serving, tmp_path, file, words):
    """Neither does OpenSSL ask the terminal for a pass phrase, nor wait at a pipe."""
    regions, addresses = serving
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "locked.key").write_text(ENCRYPTED_KEY)
    folder = regions.folder if "/" in file else tmp_path
    identity = (regions.folder / "keys/east-0.pem", folder / file)
    with pytest.raises(landbridge.ConfigError, match=words):
        connect(regions, addresses["east"], 0, identity=identity)


def test_a_ca_file_may_have_comments_and_other_blocks(serving, tmp_path):
    keys = serving[0].folder / "keys"
    mixed = tmp_path / "ca.pem"
    blocks = ("# CA of Zürich\n".encode(), (keys / "ca.key").read_bytes())
    mixed.write_bytes(b"\xff\n".join((*blocks, (keys / "ca.pem").read_bytes())))
    for ca in (keys / "ca.pem", mixed):
        context = load_trainer_tls_context(TrainerTlsGateway("host", 1, ca))
        assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("code", [9, 10])
def test_an_expired_certificate_is_told_with_the_clock(code):
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "certificate is not valid now"
    told = trainer_tls_error(TrainerTlsGateway("host", 1, None), error)
    assert isinstance(told, landbridge.UntrustedSocket) and told.is_final
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert f"it is {today}" in str(told) and "correct the clock" in str(told)


def test_a_trainer_shows_its_certificate_where_it_is_wanted():
    with serving_regions('trainers_ca = "keys/ca.pem"', ranks=(1, 1)) as (regions, addresses):
        with pytest.raises(landbridge.UntrustedSocket, match="wants one"):
            connect(regions, addresses["east"], 0)
        keys = regions.folder / "keys"

        def attach(rank):
            region = "east" if rank == 0 else "west"
            identity = (keys / f"{region}-0.pem", keys / f"{region}-0.key")
            return connect(regions, addresses[region], rank, identity=identity)

        for group in call_for_all(range(2), attach):
            group.close()


def test_ranks_over_tls_recover_after_their_gateway_was_killed():
    with contextlib.ExitStack() as stack:
        regions, addresses = stack.enter_context(serving_regions(ranks=(2, 1)))
        groups = stack.enter_context(mixed_groups(regions, addresses))
        big = numpy.ones(ELEMENTS, "float32")
        operations = [group.all_reduce_async(big, "sum") for group in groups[:2]]
        regions.kill_process("east")
        for operation in operations:
            with pytest.raises(landbridge.GatewayLost):
                operation.wait()
        regions.start_gateway("east")
        call_for_all(groups, lambda group: group.recover(timeout=60))
        results = call_for_all(groups, lambda group: group.all_reduce(big, "sum"))
        assert all((result == 3).all() for result in results)
