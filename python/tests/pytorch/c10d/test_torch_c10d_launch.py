"""The place of a process in the world: launchers, region files, and the registered name."""

from pathlib import Path

import pytest

import landbridge

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from landbridge.torch import init_process_group, register_backend  # noqa: E402
from landbridge.torch._c10d.launch import LaunchPlace  # noqa: E402
from landbridge.torch._c10d.site_store import SiteStoreAddress  # noqa: E402
from landbridge.torch._c10d.world import is_world_inside_site  # noqa: E402

#: A fabric of two ranks in east and two in west, as the region file of west shows it.
FABRIC = {
    "gateways": [{"gateway": "west-0"}, {"gateway": "west-1"}],
    "ranks": [
        {"rank": 0, "region": "east", "gateway": "east-0"},
        {"rank": 1, "region": "east", "gateway": "east-0"},
        {"rank": 2, "region": "west", "gateway": "west-0"},
        {"rank": 3, "region": "west", "gateway": "west-1"},
    ],
}


def find_rank(**variables):
    return LaunchPlace.from_environment(variables).find_rank(FABRIC, Path("west.toml"))


@pytest.mark.parametrize(
    "names",
    [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ],
)
def test_launchers_number_the_ranks_of_a_site(names):
    assert find_rank(**dict(zip(names, ("1", "2")))) == 3


def test_one_launcher_of_all_sites_numbers_all_ranks():
    assert find_rank(RANK="2", WORLD_SIZE="4") == 2
    with pytest.raises(landbridge.ConfigError, match="RANK=1: region `west` has ranks 2, 3"):
        find_rank(RANK="1", WORLD_SIZE="4")


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "no launcher has numbered this process"),
        ({"RANK": "0"}, "no launcher has numbered this process"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x', WORLD_SIZE='2': accepted: whole numbers"),
        ({"RANK": "0", "WORLD_SIZE": "3"}, "WORLD_SIZE=3: region `west` has 2 ranks, and the f"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2: region `west` has ranks 2, 3"),
    ],
)
def test_places_that_do_not_fit_are_refused(variables, text):
    with pytest.raises(landbridge.ConfigError, match=text):
        find_rank(**variables)


def test_a_region_file_of_no_site_is_refused():
    place = LaunchPlace(0, 2, ("RANK", "WORLD_SIZE"))
    for gateways, found in (([], "no region"), (["east-0", "west-0"], "east, west")):
        fabric = {**FABRIC, "gateways": [{"gateway": name} for name in gateways]}
        with pytest.raises(landbridge.ConfigError, match=f"serve ranks of {found}, not of one"):
            place.find_rank(fabric, Path("x.toml"))


def test_a_world_that_does_not_fit_the_fabric_is_refused(regions, monkeypatch):
    monkeypatch.delenv("LANDBRIDGE_CONFIG", raising=False)
    with pytest.raises(landbridge.ConfigError, match="set LANDBRIDGE_CONFIG"):
        is_world_inside_site([0, 1], 0, 3)
    with pytest.raises(landbridge.ConfigError, match="set LANDBRIDGE_CONFIG"):
        init_process_group()
    monkeypatch.setenv("LANDBRIDGE_CONFIG", str(regions.region_file("west")))
    with pytest.raises(landbridge.ConfigError, match="a world of 2 ranks, and the fabric of .* 3"):
        is_world_inside_site([0, 1], 0, 2)
    with pytest.raises(landbridge.ConfigError, match="calls this process rank 1, .* one of 2"):
        is_world_inside_site([0, 1, 2], 1, 3)
    assert not is_world_inside_site([0, 1, 2], 2, 3)
    assert is_world_inside_site([0, 1], 2, 3)


def test_the_name_is_registered_once_and_never_taken_over(monkeypatch):
    register_backend()
    assert dist.Backend("landbridge") == "landbridge"
    plugins = dist.Backend._plugins
    other = plugins["LANDBRIDGE"]._replace(creator_fn=find_rank)
    monkeypatch.setitem(plugins, "LANDBRIDGE", other)
    with pytest.raises(landbridge.ConfigError, match="another package has registered"):
        register_backend()


def test_the_address_of_a_store_survives_its_bytes():
    place = SiteStoreAddress("node-7.example", "10.0.0.7", 40_123)
    assert SiteStoreAddress.from_bytes(place.to_bytes()) == place
    assert len(place.to_bytes()) == 512
