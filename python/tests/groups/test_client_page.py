"""The code on the page about the client in Python."""

import re
from pathlib import Path

import landbridge
from conftest import call_for_all


def test_the_blocks_of_the_page_run_on_all_ranks(groups):
    page = Path(__file__).parents[3] / "docs/clients/python.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 6

    def run(group):
        names = {"group": group, "landbridge": landbridge}
        for number, block in enumerate(blocks):
            exec(compile(block, f"block {number}", "exec"), names)
            group.barrier(timeout=30)

    call_for_all(groups, run)
