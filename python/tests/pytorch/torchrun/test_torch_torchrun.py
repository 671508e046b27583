"""Torchrun in each site, whose agents meet through the gateways."""

import json
import os
from pathlib import Path

import pytest

import landbridge
from conftest import call_for_all
from landbridge._local_regions import LocalRegions

torch = pytest.importorskip("torch")

from site_processes import run_torchruns  # noqa: E402
from torch.distributed.elastic.rendezvous import RendezvousParameters  # noqa: E402

from landbridge.torch._c10d.rendezvous import create_rendezvous  # noqa: E402

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def regions():
    """Two ranks in east and one in west."""
    with LocalRegions(ranks=(2, 1)) as running:
        yield running


def make_handler(regions, region, monkeypatch, nodes=1, **conf):
    monkeypatch.setenv("LANDBRIDGE_CONFIG", "")
    endpoint = str(regions.region_file(region))
    parameters = RendezvousParameters("landbridge", endpoint, "job", nodes, nodes, **conf)
    handler = create_rendezvous(parameters)
    assert os.environ["LANDBRIDGE_CONFIG"] == endpoint
    return handler


def test_agents_of_all_sites_meet_again_after_a_restart(regions, monkeypatch):
    """An agent that comes anew meets no agent of the meeting before."""
    conf = {"timeout": "30"}
    handlers = [make_handler(regions, region, monkeypatch, **conf) for region in regions.ranks]

    def meet(handler):
        met = handler.next_rendezvous()
        met.store.set(f"rank-{met.rank}", "here")
        assert met.store.multi_get([f"rank-{rank}" for rank in range(2)]) == [b"here"] * 2
        return met.rank, met.world_size, met.store._prefix

    first = call_for_all(handlers, meet)
    again = [make_handler(regions, "east", monkeypatch, **conf), handlers[1]]
    second = call_for_all(again, meet)
    assert [met[:2] for met in first] == [met[:2] for met in second] == [(0, 2), (1, 2)]
    assert len({met[2] for met in first}) == len({met[2] for met in second}) == 1
    assert first[0][2] != second[0][2]


def test_agents_that_do_not_come_are_named(regions, monkeypatch):
    handler = make_handler(regions, "west", monkeypatch, timeout="1")
    with pytest.raises(landbridge.RanksTimedOut, match="agents"):
        handler.next_rendezvous()


def test_nodes_that_do_not_fit_the_site_are_refused(regions, monkeypatch):
    for nodes, node in ((2, 0), (1, 1)):
        with pytest.raises(landbridge.ConfigError, match="region `west` has 1 ranks"):
            make_handler(regions, "west", monkeypatch, nodes, node=str(node))


def test_torchrun_in_each_site_numbers_and_restarts_all_ranks(regions, tmp_path):
    """The plain script fails once in west, after which both sites start their trainers again."""
    options = ["--max-restarts=1", "--monitor-interval=0.1"]
    script, small = HERE / "torchrun_script.py", {"LANDBRIDGE_ARENA": "8 MiB"}
    run_torchruns(regions, tmp_path, script, tmp_path, options=options, **small)
    places = [json.loads((tmp_path / f"rank-{rank}").read_text("utf-8")) for rank in range(3)]
    totals = [6.0, 6.0, 3.0]
    assert places == [
        {"rank": rank, "world": 3, "attempt": 1, "total": totals[rank]} for rank in range(3)
    ]
