"""The report page, in a real browser: it works, it is alone, and it shows the data and nothing but text of it."""

import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from orthoptim_experiments.harness import record_reader
from orthoptim_experiments.harness.attachments import Picture
from orthoptim_experiments.harness.claims import Claim, Verdict
from orthoptim_experiments.harness.panels import PAPER, Panel, Target
from orthoptim_experiments.report import Section, write_report
from tests.orthoptim_experiments import browser
from tests.orthoptim_experiments.synthetic import run_lines, write_run

pytestmark = pytest.mark.browser

ARTEFACTS = Path(__file__).parents[2] / "artefacts"
"""Screenshots are kept here."""

EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 2'>&amp;\u2028"
PNG = b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\x00\x80")),
        (b"IEND", b""),
    )
)
COLUMNS = ("gap", "projected_gap", "distance")
STATUSES = {("SLPG", 1): "diverged", ("RSDM", 2): None, ("Landing", 0): "failed"}


def finding(says, measured, verdict, quote=""):
    return Claim(says, judge=lambda run: None, quote=quote), Verdict(verdict, measured)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    pca = record_reader.load(write_run(folder / "pca-0123456789.jsonl", seeds=3, statuses=STATUSES))
    other = record_reader.load(
        write_run(folder / "evil.jsonl", experiment="evil", methods=("POGO", EVIL), seeds=1, steps=50)
    )
    other.environment["cpu"] = other.config["note"] = other.notice = other.trials[1].message = EVIL
    findings = [
        finding("POGO is first", "POGO 2.1 s, then LandingPC 2.9 s", "holds", "we see it"),
        finding("RSDM is last", "RGD is", "fails"),
        finding("SLPG follows", "not run", "not measured"),
    ]
    panels = [*PAPER[:2], replace(PAPER[2], shade=1e-5), Panel("method", "time", label="time, all of it")]
    sections = [
        Section(pca, "Online PCA", "Leading eigenvectors.", panels, COLUMNS, Target("gap", 1e-6), findings),
        Section(
            other,
            EVIL,
            EVIL,
            columns=COLUMNS,
            findings=[finding(EVIL, EVIL, "fails", EVIL)],
            attachments=[Picture(EVIL, PNG, EVIL, EVIL)],
        ),
    ]
    (path,) = write_report(sections, folder / "report.html")
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    if reason := browser.missing():
        pytest.skip(f"no browser: {reason}")
    with browser.open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def shown(driver, page):
    browser.set_view(driver, width=1280, theme="light")
    browser.requests(driver)
    driver.get(page.as_uri())
    return driver


PCA = "#pca-0123456789"


def plots(driver, section=PCA):
    """What plotly drew in the charts of a section: names of the curves shown, and the axes."""
    return driver.execute_script(
        """return [...document.querySelectorAll(arguments[0] + " .plot")].map((plot) => ({
            names: plot.data.map((trace) => trace.name).filter((name) => name && !name.includes("seed")),
            bands: plot.data.filter((trace) => trace.fill).length,
            lost: plot.data.map((trace) => trace.name).filter((name) => name && name.includes("seed")),
            bars: plot.data.filter((trace) => trace.type === "bar").flatMap((trace) => trace.x),
            x: plot.layout.xaxis.title?.text, scales: [plot.layout.xaxis.type, plot.layout.yaxis.type],
            last: Math.max(...plot.data.flatMap((trace) => trace.x)),
            drawn: plot.querySelectorAll(".trace, .bars .point").length,
        }))""",
        section,
    )


def click(driver, selector):
    driver.execute_script("arguments[0].click()", driver.find_element(By.CSS_SELECTOR, selector))


METHODS = ["POGO", "RGD", "RSDM", "Landing", "LandingPC", "SLPG"]


def test_it_loads_alone_and_without_complaint(shown, page):
    gap, distance, time = plots(shown)
    assert sorted(gap["names"]) == sorted(distance["names"]) == sorted(METHODS)
    assert gap["lost"] == ["SLPG, seed 1: diverged", "Landing, seed 0: failed"][::-1]
    assert gap["bands"] == 4  # three seeds each, one lost of Landing and of SLPG
    assert time["bars"] == METHODS
    assert all(chart["drawn"] > 0 for chart in (gap, distance, time))
    assert (gap["x"], gap["scales"]) == ("wall time (s)", ["linear", "log"])
    assert shown.get_log("browser") == []
    assert browser.requests(shown) == [page.as_uri()]


def test_methods_are_switched_off_and_on_in_all_charts_of_their_experiment(shown):
    button = shown.find_element(By.CSS_SELECTOR, f'{PCA} .method[data-method="POGO"]')
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    gap, distance, time = plots(shown)
    assert "POGO" not in gap["names"] + distance["names"] + time["bars"]
    assert "RGD" in gap["names"]
    assert "POGO" in plots(shown, "section:last-of-type")[0]["names"]
    button.send_keys(Keys.ENTER)  # by keyboard, too
    assert button.get_attribute("aria-pressed") == "true"
    assert "POGO" in plots(shown)[0]["names"]


def test_time_and_iteration_log_axes_and_bands_are_switched(shown):
    before = plots(shown)[0]["last"]
    click(shown, f'{PCA} input[value="step"]')
    gap, distance, _ = plots(shown)
    assert gap["x"] == distance["x"] == "iteration"
    assert gap["last"] == 1500 != before
    click(shown, f"{PCA} .log-x")
    click(shown, f"{PCA} .chart:first-child .log-y")
    gap, distance, _ = plots(shown)
    assert (gap["scales"], distance["scales"]) == (["log", "linear"], ["log", "log"])
    click(shown, f"{PCA} .bands")
    assert plots(shown)[0]["bands"] == 0
    assert shown.get_log("browser") == []


def test_hovering_tells_the_values(shown):
    label = shown.execute_script(
        """const plot = document.querySelector(arguments[0] + " .plot");
        const at = plot.data.findIndex((trace) => trace.name === "POGO");
        Plotly.Fx.hover(plot, [{ curveNumber: at, pointNumber: 0 }]);
        return plot.querySelector(".hoverlayer").textContent""",
        PCA,
    )
    assert re.fullmatch(r"POGO0 s0\.3\d+0\.\d+ to 0\.\d+3 seeds", label)


def test_light_and_dark(shown):
    def ground():
        return shown.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = ground()
    shown.find_element(By.ID, "theme").click()
    dark = ground()
    assert light != dark
    shown.find_element(By.ID, "theme").click()
    assert ground() == light
    browser.set_view(shown, width=1280, theme="dark")
    shown.refresh()
    assert ground() == dark
    browser.screenshot(shown, _artefact("report-dark.png"))


@pytest.mark.parametrize(("name", "width"), [("wide", 1280), ("phone", 390)])
def test_it_fits_the_screen(shown, name, width):
    browser.set_view(shown, width=width, theme="light")
    shown.refresh()
    assert shown.execute_script("return document.documentElement.scrollWidth") <= width
    image = browser.screenshot(shown, _artefact(f"report-{name}.png")).read_bytes()
    assert struct.unpack(">I", image[16:20]) == (width,)


def test_text_of_the_data_is_text(shown):
    assert shown.execute_script("return window.evil") is None
    text = shown.execute_script("return document.querySelector('main').textContent")
    assert text.count(EVIL) >= 12
    assert shown.find_elements(By.CSS_SELECTOR, "img[src=x]") == []
    assert EVIL.split("&")[0].replace("<", "&lt;") in plots(shown, "section:last-of-type")[0]["names"][0]
    loaded = shown.execute_script("return document.querySelector('.picture img').naturalWidth")
    assert loaded == 1


def test_the_tables_say_what_happened(shown):
    section = shown.find_element(By.CSS_SELECTOR, PCA)
    lines = section.find_elements(By.CSS_SELECTOR, ".results tbody tr")
    rows = dict(zip(METHODS, (line.text for line in lines), strict=True))
    assert all(name in text for name, text in rows.items())
    assert "3 converged" in rows["POGO"]
    assert "2 budget, 1 diverged" in rows["SLPG"]
    assert "2 budget, 1 unfinished" in rows["RSDM"]
    assert "1 failed, 2 budget" in rows["Landing"]
    assert re.search(r"> \d\.\d+ ×", rows["POGO"])
    assert "not reached" in rows["RGD"]
    troubles = section.find_element(By.CSS_SELECTOR, ".troubles").text
    assert "Landing, seed 0: failed after 375 iterations: RuntimeError: the matrix <X> is singular" in troubles
    verdicts = [cell.get_attribute("textContent") for cell in section.find_elements(By.CSS_SELECTOR, ".verdict")]
    assert verdicts == ["✓ holds here", "✕ does not hold here", "– not measured"]


def test_it_can_be_used_without_eyes_or_mouse(shown):
    bare = shown.execute_script(
        """const has = (each, name) => each.getAttribute(name);
        const named = (each) => has(each, "aria-label") || each.labels?.length || each.textContent.trim();
        const labelled = [...document.querySelectorAll("[aria-labelledby]")];
        return {
            controls: [...document.querySelectorAll("button, input")].filter((each) => !named(each)).length,
            headers: document.querySelectorAll("th:not([scope])").length,
            images: document.querySelectorAll("img:not([alt]), .plot:not([aria-label])").length,
            levels: [...document.querySelectorAll("h1, h2, h3")].map((each) => Number(each.tagName[1])),
            ids: labelled.filter((each) => !document.getElementById(has(each, "aria-labelledby"))).length,
        }"""
    )
    assert (bare["controls"], bare["headers"], bare["images"], bare["ids"]) == (0, 0, 0, 0)
    assert bare["levels"][0] == 1
    assert all(after <= before + 1 for before, after in zip(bare["levels"], bare["levels"][1:], strict=False))


def test_it_prints(shown):
    printed = shown.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 20_000
    assert shown.get_log("browser") == []


def test_a_run_that_has_not_begun_is_a_page_too(driver, tmp_path):
    header = next(iter(run_lines()))
    (tmp_path / "pca.jsonl").write_text(json.dumps(header) + "\n")
    (path,) = write_report([Section(record_reader.load(tmp_path / "pca.jsonl"), "Empty")], tmp_path / "report.html")
    driver.get(path.as_uri())
    assert "No trial has begun." in driver.find_element(By.CSS_SELECTOR, "section").text
    assert driver.get_log("browser") == []


def _artefact(name):
    ARTEFACTS.mkdir(exist_ok=True)
    return ARTEFACTS / name
