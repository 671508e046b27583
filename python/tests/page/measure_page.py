"""Measures the status page in Chromium, and takes its pictures.

It writes docs/results/status-page/: figures and four pictures.
It needs Playwright, and a Chromium on the PATH or Playwright's own.

Two regions all-reduce over an emulated link all the time. The time to the first paint is that of
Chromium's first contentful paint, of pages that are opened anew. For the cost of open pages, rounds
without any alternate with rounds in which the requests of one page are repeated twenty times over:
twenty browsers would take the machine's cores, which they have for themselves elsewhere.
"""

import argparse
import base64
import contextlib
import os
import platform
import re
import shutil
import statistics
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy
from playwright.sync_api import sync_playwright

import landbridge
from landbridge._local_regions import LocalRegions, RelayLink

#: The root of the project.
ROOT = Path(__file__).parents[3]
#: The link between the regions: slow enough for all processes to have a core when they need one.
LINK = RelayLink(rate="100 Mbit/s", rtt="20 ms")
#: Elements of the all-reduces, 1 MiB of f32.
ELEMENTS = 1 << 18
#: Pages that are opened for the time to the first paint.
PAINTS = 15
#: The longest median time to the first paint that is wanted, in milliseconds.
PAINT_MS_MAX = 300
#: Pages that are open at once.
OPEN_PAGES = 20
#: Rounds with open pages, and as many without.
ROUNDS = 5
#: The length of a round, in seconds.
ROUND_S = 12
#: The least throughput with open pages that is wanted, as a part of that without.
THROUGHPUT_MIN = 0.97
#: The time that the load runs before pictures are taken, in seconds: some samples of the history.
HISTORY_S = 65
#: The sizes of pictures by name.
SIZES = {"desktop": {"width": 1180, "height": 900}, "phone": {"width": 390, "height": 844}}
#: The largest picture that is wanted, in bytes.
PICTURE_BYTES_MAX = 60_000


class Load:
    """Ranks that all-reduce until they are told to end."""

    def __init__(self, regions):
        self.done, self.is_ending = 0, threading.Event()
        self.threads = [
            threading.Thread(target=self.run, args=(regions.region_file_of_rank(rank), rank))
            for rank in range(sum(regions.ranks.values()))
        ]
        for thread in self.threads:
            thread.start()

    def run(self, config, rank):
        """All-reduces as one rank. All end after one collective, as its last element tells."""
        with landbridge.connect(config=config, rank=rank, arena="64 MiB") as group:
            while True:
                values = numpy.zeros(ELEMENTS, numpy.float32)
                values[-1] = self.is_ending.is_set()
                result = group.all_reduce(values)
                if rank == 0:
                    self.done += 1
                if result[-1]:
                    return

    def rate(self, seconds):
        """Returns the all-reduces a second over the next `seconds`."""
        begun, done = time.monotonic(), self.done
        time.sleep(seconds)
        if not all(thread.is_alive() for thread in self.threads):
            raise RuntimeError("a rank has ended; its error stands above")
        return (self.done - done) / (time.monotonic() - begun)

    def end(self):
        """Ends both ranks."""
        self.is_ending.set()
        for thread in self.threads:
            thread.join()


def first_paint_ms(browser, address):
    """Returns the time from the begin of the request to the first paint of a new page."""
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.goto(address)
        page.locator("#members tbody tr").first.wait_for()
        return page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")


def requests_of_page(browser, address):
    """Returns what a page asks for in a round after it was opened: when, the path, and the headers."""
    asked = []
    with contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        begun = time.monotonic()

        def note(request):
            sent = {"Cache-Control": request.headers.get("cache-control", "no-cache")}
            path = urllib.parse.urlsplit(request.url).path
            asked.append((time.monotonic() - begun, path, sent))

        page.on("request", note)
        page.goto(address)
        page.wait_for_timeout(1000 * ROUND_S)
    return asked


def read_as_page(address, asked, delay_s):
    """Asks a gateway for what a page asks, after a delay."""
    begun = time.monotonic() + delay_s
    for at, path, headers in asked:
        time.sleep(max(begun + at - time.monotonic(), 0))
        request = urllib.request.Request(address + path, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()


def rates_without_and_with_pages(address, asked, load):
    """Returns the rates of all-reduces of rounds without open pages, and of those with their
    requests."""
    rates = ([], [])
    for _ in range(ROUNDS):
        rates[0].append(load.rate(ROUND_S))
        pages = [
            threading.Thread(target=read_as_page, args=(address, asked, number / OPEN_PAGES))
            for number in range(OPEN_PAGES)
        ]
        for page in pages:
            page.start()
        rates[1].append(load.rate(ROUND_S))
        for page in pages:
            page.join()
    return rates


def take_picture(browser, address, size, scheme):
    """Returns a picture of the page as WebP, which Chromium itself writes."""
    options = {"viewport": SIZES[size], "color_scheme": scheme}
    with contextlib.closing(browser.new_context(**options)) as context:
        page = context.new_page()
        page.goto(address)
        page.locator("#members tbody tr").first.wait_for()
        # A throughput needs two statuses.
        page.wait_for_timeout(5000)
        picture = base64.b64encode(page.screenshot(type="png")).decode()
        page = context.new_page()
        encoded = page.evaluate(
            """async (png) => {
                const image = new Image();
                image.src = "data:image/png;base64," + png;
                await image.decode();
                const canvas = document.createElement("canvas");
                [canvas.width, canvas.height] = [image.width, image.height];
                canvas.getContext("2d").drawImage(image, 0, 0);
                return canvas.toDataURL("image/webp", 0.8).split(",")[1];
            }""",
            picture,
        )
    return base64.b64decode(encoded)


def measure(folder):
    """Measures, writes the pictures into a folder, and returns the figures as Markdown, with what
    was wanted and missed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with contextlib.ExitStack() as stack:
        regions = stack.enter_context(LocalRegions(ranks=(1, 1), link=LINK))
        text = regions.region_file("east").read_text("utf-8")
        address = "http://" + re.search(r'status = "([^"]+)"', text)[1]
        started = stack.enter_context(sync_playwright())
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        stack.callback(browser.close)
        version = browser.version
        load = Load(regions)
        stack.callback(load.end)
        asked = requests_of_page(browser, address)
        time.sleep(HISTORY_S - ROUND_S)
        pictures = {
            f"{size}-{scheme}.webp": take_picture(browser, address, size, scheme)
            for size in SIZES
            for scheme in ("light", "dark")
        }
        paints = [first_paint_ms(browser, address) for _ in range(PAINTS)]
        without, beside = rates_without_and_with_pages(address, asked, load)
    for name, picture in pictures.items():
        (folder / name).write_bytes(picture)
    largest = max(map(len, pictures.values()))
    ratios = [one / other for one, other in zip(beside, without)]
    missed = [
        text
        for is_missed, text in (
            (statistics.median(paints) > PAINT_MS_MAX, "the first paint"),
            (statistics.median(ratios) < THROUGHPUT_MIN, "the throughput"),
            (largest > PICTURE_BYTES_MAX, "the size of a picture"),
        )
        if is_missed
    ]
    return figures((version, len(asked)), paints, (without, beside, ratios)), missed


def figures(page, paints, rates):
    """Returns the page of figures as Markdown. `page` has the version of Chromium, and the number of
    requests of a page in a round."""
    version, requests = page
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    without, beside, ratios = rates
    mebibytes = ELEMENTS * 4 >> 20
    names = [f"{size}-{scheme}.webp" for size in SIZES for scheme in ("light", "dark")]
    shown = "\n\n".join(
        f"![The status page: {name[:-5].replace('-', ', ')}]({name})" for name in names
    )
    paint = f"median {statistics.median(paints):.0f} ms, longest {max(paints):.0f} ms"
    ratio = f"median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    return f"""# The status page

Written by `python python/tests/page/measure_page.py` at commit {commit}, on {os.cpu_count()} cores, {platform.system()} \
{platform.release()}, in Chromium {version}.

Two regions all-reduce {mebibytes} MiB again and again over an emulated link ({LINK.rate}, {LINK.rtt}). Gateways, link, ranks and browser share
the cores of one machine, and others use it too.

| what | measured | wanted |
|---|---|---|
| first contentful paint, of {len(paints)} pages that are opened anew | {paint} | at most {PAINT_MS_MAX} ms in the median |
| all-reduces a second with the requests of {OPEN_PAGES} open pages, as a part of those without; {len(ratios)} pairs of rounds of {ROUND_S} s, \
{requests} requests a page | {ratio} | at least {THROUGHPUT_MIN} in the median |
| all-reduces a second without pages, and with them, medians | {statistics.median(without):.2f}, {statistics.median(beside):.2f} | |

{shown}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    folder = ROOT / "docs/results/status-page"
    parser.add_argument(
        "--out", type=Path, default=folder, help=f"folder of the results ({folder})"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    text, missed = measure(out)
    (out / "figures.md").write_text(text, "utf-8")
    print(text)
    for what in missed:
        print(f"MISSED: {what}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
