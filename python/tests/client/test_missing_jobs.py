"""Jobs that only one region file has, as trainers hear of them."""

import pytest

import landbridge
from landbridge._local_regions import LocalRegions


def test_a_job_that_one_region_lacks_is_named():
    regions = LocalRegions(jobs=("zoo", "train"))
    east, west = regions.region_file("east"), regions.region_file("west")
    text = west.read_text("utf-8")
    before, zoo, after = text.partition("[job.zoo]")
    assert zoo, text
    west.write_text(before + after[after.index("[job.train]") :], "utf-8")
    with regions:
        expected = r"job zoo of gateway west-0: not in its region file.*`\[job\.zoo\]`"
        with pytest.raises(landbridge.NoEpoch, match=expected) as raised:
            landbridge.connect(config=east, rank=0, job="zoo", arena="1 MiB", timeout=8)
        assert "train" not in str(raised.value)
