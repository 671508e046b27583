"""Runs PyTorch's own distributed tests over the backend landbridge, and writes their table.

Without names of tests it runs all, and writes docs/results/pytorch/distributed.md. It fails where a
test does.
"""

import argparse
import collections
import subprocess
import sys
from pathlib import Path

import torch

from distributed_suite import PLACEMENTS, load_suite, make_test_class, names_of_tests, run_test
from landbridge._local_regions import LocalRegions

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/results/pytorch/distributed.md"
#: The command that writes the page, in the root of the repository.
COMMAND = "PYTHONPATH=python python python/tests/pytorch/upstream/run_distributed_tests.py"
#: The verdicts in the order of the table, each with its words there.
VERDICTS = {
    "passed": "passed",
    "differs": "skipped, by the table of landbridge below",
    "skipped": "skipped, by PyTorch as in the last table",
    "failed": "failed",
}


def run_placement(suite, placement, names):
    """Runs tests with ranks in some placement, and prints each outcome. Returns them by name."""
    outcomes = {}
    with LocalRegions(ranks=PLACEMENTS[placement]) as regions:
        kind = make_test_class(suite, regions)
        for name in names:
            outcome = outcomes[name] = run_test(kind, name, placement)
            print(placement, name, outcome.verdict, outcome.text, flush=True)
    return outcomes


def reason_rows(outcomes, verdict):
    """Returns the rows of a table: each reason with the tests of some verdict that have it."""
    places = collections.defaultdict(list)
    for placement, of_placement in outcomes.items():
        for name, outcome in of_placement.items():
            if outcome.verdict == verdict:
                places[name, outcome.text.replace("|", "\\|")].append(placement)
    names = collections.defaultdict(list)
    for (name, reason), found in places.items():
        names[reason, " and ".join(found)].append(f"`{name}`")
    return [
        f"| {reason} | {where} | {len(tests)} | {', '.join(tests)} |"
        for (reason, where), tests in sorted(names.items(), key=lambda row: -len(row[1]))
    ]


def page_text(outcomes):
    """Returns the text of the page."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
    commit = done.stdout.strip()
    count = {
        placement: collections.Counter(outcome.verdict for outcome in found.values())
        for placement, found in outcomes.items()
    }
    totals = [
        f"| {words} | {' | '.join(str(count[placement][verdict]) for placement in outcomes)} |"
        for verdict, words in VERDICTS.items()
    ]
    by_names = collections.defaultdict(set)
    for found in outcomes.values():
        for name, outcome in found.items():
            by_names[outcome.verdict].add(f"`{name}`")
    head = "| reason | ranks at | tests | which |\n|---|---|---|---|"
    return "\n".join(
        [
            "# PyTorch's own distributed tests",
            "",
            f"Written by `{COMMAND}` at commit {commit}, with PyTorch {torch.__version__}.",
            "",
            "Every test of `torch.testing._internal.distributed.distributed_test`, as PyTorch's "
            "wheel ships it, over the backend `landbridge`: four",
            "processes on CPU tensors, all at one site, where the backend is Gloo, or two at each "
            "of two sites. It is the one module of the wheel",
            "whose tests take the name of a backend. Tests count landbridge as Gloo when they ask "
            "whether to run, those that PyTorch runs from",
            "eight ranks on run with four, and `all_to_all`, which is left to MPI there, runs as "
            "well. No test is changed.",
            "",
            f"| tests | {' | '.join(outcomes)} |",
            f"|---|{'---|' * len(outcomes)}",
            *totals,
            "",
            "## Skipped by landbridge",
            "",
            "These run too, and each fails, with the text that it is known for. The reason was "
            "found by hand.",
            "",
            head,
            *reason_rows(outcomes, "differs"),
            "",
            "## Skipped by PyTorch",
            "",
            "A number of an issue is of a test that PyTorch has switched off on Linux for every "
            "backend.",
            "",
            head,
            *reason_rows(outcomes, "skipped"),
            "",
            "## Passed",
            "",
            f"In one placement or both: {', '.join(sorted(by_names['passed']))}.",
            "",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of tests")
    parser.add_argument("--placement", choices=PLACEMENTS, help="where ranks are; by default both")
    words = parser.parse_args()
    suite = load_suite()
    outcomes = {
        placement: run_placement(suite, placement, words.names or names_of_tests(suite))
        for placement in ([words.placement] if words.placement else PLACEMENTS)
    }
    if not words.names and not words.placement:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page_text(outcomes), "utf-8")
    verdicts = {outcome.verdict for found in outcomes.values() for outcome in found.values()}
    return "failed" in verdicts


if __name__ == "__main__":
    sys.exit(main())
