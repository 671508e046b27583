"""The status page in a browser, beside the JSON of the same gateway.

It needs Playwright and its Chromium: ``pip install playwright && playwright install chromium``. A
Chromium that is installed otherwise is found on the PATH. The rules of axe-core come with
``pip install axe-playwright-python``. Without them the tests are skipped.
"""

import json
import re
import shutil
import urllib.parse
import urllib.request

import pytest

from landbridge._local_regions import LocalRegions

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

#: Limit on a wait for the page, in milliseconds.
WAIT_MS = 20_000
#: Rows that a table shows at first.
ROWS_STEP = 20
#: The width of a desktop and of a phone, in pixels.
WIDTHS = (1280, 390)
#: The impacts of findings of axe-core that a page must not have. Others are advice.
SERIOUS_IMPACTS = ("critical", "serious")
#: A name that must stay a text.
HOSTILE = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def regions():
    """Running gateways of east with two ranks and west with one."""
    with LocalRegions(ranks=(2, 1)) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window."""
    with playwright.sync_playwright() as started:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start: {error}")
        yield browser
        browser.close()


class Visit:
    """An open page with what went wrong in it."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.errors = []
        self.hosts = set()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._take_line)
        self.page.on("request", self._take_request)

    def _take_request(self, request):
        host = urllib.parse.urlsplit(request.url).netloc
        if host:
            self.hosts.add(host)

    def _take_line(self, line):
        if line.type in ("error", "warning"):
            self.errors.append(line.text)

    def texts(self, selector):
        """Returns the texts of all elements."""
        return self.page.locator(selector).all_inner_texts()

    def rows(self, table):
        """Returns the texts of the cells of each row."""
        rows = self.page.locator(f"#{table} tbody tr").all()
        return [row.locator("td").all_inner_texts() for row in rows]

    def wait_for_data(self):
        """Waits until the page shows a status. Its policy forbids functions to wait for."""
        self.page.locator("#members tbody tr").first.wait_for()


@pytest.fixture
def visit(browser):
    """Opens pages, and finds no error in them at the end."""
    opened = []

    def open_page(url, **options):
        opened.append(Visit(browser, **options))
        opened[-1].page.goto(url)
        return opened[-1]

    yield open_page
    for each in opened:
        each.context.close()
        assert each.errors == []


def status_address(regions, region="east"):
    """Returns the URL of a gateway's status server."""
    text = regions.region_file(region).read_text("utf-8")
    return "http://" + re.search(r'status = "([^"]+)"', text)[1]


def fetch_json(url):
    """Returns the JSON at an address."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def joined_status(address):
    """Returns the status once all gateways have met."""
    while True:
        status = fetch_json(f"{address}/status")
        if status["jobs"][0]["epoch"] is not None and status["peers"][0]["state"] == "up":
            return status


def test_the_page_says_what_the_status_says(regions, visit):
    address = status_address(regions)
    status = joined_status(address)
    seen = visit(address)
    seen.wait_for_data()
    page = seen.page
    playwright.expect(page.locator("#ready")).to_have_text("Ready", timeout=WAIT_MS)
    assert page.locator("#gateway").inner_text() == f"Gateway {status['gateway']}"
    assert status["fabric"] in page.locator("#about").inner_text()
    assert seen.texts("#alarms li") == ["No alarm."]
    (link,) = seen.rows("links")
    assert link[0] == "-".join(status["links"][0]["between"])
    peer = status["peers"][0]
    lanes = f"{peer['lanes_up']}/{peer['lanes']}"
    assert lanes in link
    own, other = sorted(seen.rows("members"))
    assert own[:4] == [status["gateway"], status["region"], "0-1", "this gateway"]
    assert other[:5] == [peer["gateway"], peer["region"], "2", "up", lanes]
    (job,) = seen.rows("jobs")
    assert job[:2] == [status["jobs"][0]["job"], str(status["jobs"][0]["epoch"])]
    assert status["jobs"][0]["plan"]["hash"] in job[2]
    assert page.locator("#map line.link").count() == len(status["links"])
    assert seen.hosts == {urllib.parse.urlsplit(address).netloc}


def test_a_lost_region_becomes_an_alarm(visit):
    with LocalRegions(ranks=(1, 1)) as regions:
        address = status_address(regions)
        joined_status(address)
        page = visit(address).page
        regions.kill_process("west")
        page.wait_for_selector("#alarms li.blocks", timeout=4 * WAIT_MS)
        problems = fetch_json(f"{address}/status")["problems"]
        subjects = [problem["subject"] for problem in problems if problem["blocks"]]
        shown = page.locator("#alarms li.blocks").all_inner_texts()
        assert any(text.startswith(f"Not ready: {subjects[0]}") for text in shown), shown
        assert page.locator("#ready").inner_text().startswith("Not ready")
        page.goto("about:blank")


def test_a_saved_page_needs_no_gateway(regions, visit, tmp_path):
    address = status_address(regions)
    joined_status(address)
    seen = visit(address)
    seen.wait_for_data()
    with seen.page.expect_download() as download:
        seen.page.get_by_role("button", name="Save page").click()
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    again = visit(saved.as_uri())
    again.wait_for_data()
    assert "saved at" in again.page.locator("#freshness").inner_text()
    for table in ("members", "links", "jobs"):
        assert [row[0] for row in again.rows(table)] == [row[0] for row in seen.rows(table)]
    # A second saving holds the data once.
    with again.page.expect_download() as download:
        again.page.get_by_role("button", name="Save page").click()
    download.value.save_as(saved)
    assert saved.read_text("utf-8").count('<script type="application/json"') == 1


def large_data(address, regions_count=64, jobs_count=1000):
    """Returns the data of a gateway with many regions and jobs, made from those of a real one."""
    status = joined_status(address)
    fabric = fetch_json(f"{address}/fabric")
    peer, link, job = status["peers"][0], status["links"][0], status["jobs"][0]
    names = [status["region"], *(f"region-{number:02}" for number in range(1, regions_count))]
    status["peers"] = [{**peer, "gateway": f"{name}-0", "region": name} for name in names[1:]]
    status["links"] = [{**link, "between": [names[0], name]} for name in names[1:]]
    status["jobs"] = [{**job, "job": f"job-{number:04}"} for number in range(jobs_count - 1)]
    status["jobs"].append({**job, "job": HOSTILE, "epoch": None})
    collective = {"sequence": 1, "op": "sum", "dtype": "f32", "bytes": 4, "state": "awaiting"}
    for number, each in enumerate(status["jobs"]):
        each["collectives"] = [{**collective, "awaited": [1, 2], "seconds": float(number)}]

    def region(at, name):
        member = {"gateway": f"{name}-0", "first_rank": at, "ranks": 1, "has_wan_port": True}
        return {"region": name, "ranks": 1, "gateways": [member]}

    fabric["regions"] = [region(at, name) for at, name in enumerate(names)]
    edge = fabric["links"][0]
    fabric["links"] = [
        {**edge, "between": [one, other]}
        for at, one in enumerate(names)
        for other in names[at + 1 :]
    ]
    return {"status": status, "fabric": fabric, "history": fetch_json(f"{address}/history")}


def test_many_regions_and_jobs_are_cut_with_counts(regions, visit, tmp_path):
    address = status_address(regions)
    data = large_data(address)
    file = tmp_path / "large.json"
    file.write_text(json.dumps(data), "utf-8")
    seen = visit(address)
    seen.wait_for_data()
    page = seen.page
    page.locator("#load").set_input_files(file)
    playwright.expect(page.locator("#n-jobs")).to_have_text("1,000", timeout=WAIT_MS)
    assert len(seen.rows("jobs")) == len(seen.rows("collectives")) == ROWS_STEP
    assert seen.rows("jobs")[0][0] == HOSTILE
    assert page.title() != "taken"
    assert page.locator("#map circle").count() == 64
    assert page.locator("#map line").count() == 64 * 63 / 2
    page.locator("#jobs-more").click()
    assert len(seen.rows("jobs")) == 2 * ROWS_STEP
    page.get_by_label("Filter by name").fill("job-0042")
    assert [row[0] for row in seen.rows("jobs")] == ["job-0042"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_without_scrolling_sideways(regions, visit, scheme):
    phone = {"width": 390, "height": 844}
    seen = visit(status_address(regions), viewport=phone, color_scheme=scheme)
    seen.wait_for_data()
    page = seen.page
    assert page.evaluate("document.documentElement.scrollWidth") <= phone["width"]
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    bright = sum(int(part) for part in colour.strip("rgb()").split(",")) > 3 * 128
    assert bright == (scheme == "light")


def test_the_page_can_be_used_by_keyboard_and_ear(regions, visit):
    seen = visit(status_address(regions))
    seen.wait_for_data()
    page = seen.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for wanted in ("pause", "save", "load"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == wanted
    page.locator("#pause").focus()
    page.keyboard.press("Enter")
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    assert page.locator("#freshness").inner_text().startswith("Paused")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("table, svg, section, .scroll")].filter((one) => {
            const labels = (one.getAttribute("aria-labelledby") || "").split(" ");
            const named = labels.some((id) => document.getElementById(id)?.textContent.trim());
            return !named && !one.getAttribute("aria-label") && !one.caption;
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("html[lang]").count() == 1


def serious_findings(page):
    """Returns what axe-core finds in a page: its rule, and the first element."""
    reason = "axe-core is not installed: pip install axe-playwright-python"
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=reason)
    found = axe.Axe().run(page).response
    assert found["passes"], "it has judged something"
    return [
        (violation["id"], violation["nodes"][0]["html"])
        for violation in found["violations"]
        if violation["impact"] in SERIOUS_IMPACTS
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(regions, visit, tmp_path, scheme, width):
    address = status_address(regions)
    data = large_data(address)
    problem = {"subject": "west-0", "cause": "files", "blocks": True, "found": "x", "remedy": "y"}
    data["status"]["problems"] = [problem, {**problem, "blocks": False}]
    file = tmp_path / "large.json"
    file.write_text(json.dumps(data), "utf-8")
    seen = visit(address, viewport={"width": width, "height": 900}, color_scheme=scheme)
    seen.wait_for_data()
    page = seen.page
    page.locator("details").first.evaluate("one => one.open = true")
    assert serious_findings(page) == []
    page.locator("#load").set_input_files(file)
    playwright.expect(page.locator("#n-jobs")).to_have_text("1,000", timeout=WAIT_MS)
    assert page.locator("#alarms li.blocks").count() == 1
    assert serious_findings(page) == []
    # What it must find is found: a text without contrast, and a picture without a name.
    page.evaluate(
        """() => {
            document.getElementById("about").style.color = "var(--faint)";
            document.querySelector("main").append(document.createElement("img"));
        }"""
    )
    rules = {rule for rule, _ in serious_findings(page)}
    assert rules == {"color-contrast", "image-alt"}
