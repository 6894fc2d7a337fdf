"""The page as a browser shows it: Chromium, headless, with the network watched."""

import shutil
from dataclasses import replace
from typing import Any

import pytest

from lipforge.reports import write_report
from lipforge.results import Note
from lipforge.runs import RunDir
from tests.reports.made import full_run
from tests.reports.results import robust

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
SECTIONS = ["verdict", "accuracy", "tradeoff", "sweep", "waterfall", "audit", "layers", "certified", "gallery", "cost",
            "provenance"]  # fmt: skip
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


@pytest.fixture(name="browser", scope="module")
def _browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(name="uri", scope="module")
def _uri(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report(full_run(folder / "one"), full_run(folder / "two", "real"), out=folder / "r.html").as_uri()


@pytest.fixture(name="visit")
def _visit(browser, uri):
    """Open the page at a width; gives it with what it said on the console and what it asked the network for."""
    opened = []

    def visit(width, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(uri)
        return page, said, [url for url in asked if url != uri and not url.startswith("data:")]

    yield visit
    for page in opened:
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_the_page_is_whole_silent_and_fits(visit, width, scheme):
    page, said, asked = visit(width, scheme)
    assert (said, asked) == ([], [])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for number in (1, 2):
        for name in SECTIONS:
            box = page.locator(f"#run-{number}-{name}").bounding_box()
            assert box["height"] > 40, name
    charts = page.evaluate(
        """[...document.querySelectorAll('svg.chart')].filter(c => c.getBoundingClientRect().width > 0)
           .map(c => [c.getAttribute('aria-label').length, c.querySelectorAll('.mark').length,
                      c.getBoundingClientRect().right <= innerWidth])"""
    )
    assert len(charts) >= 2 * 14
    assert all(alt > 10 and marks > 0 and inside for alt, marks, inside in charts)
    loaded = page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 0)")
    assert len(loaded) == 2 * 8 * 3
    assert all(loaded)


def test_text_in_charts_is_large_enough_on_a_phone(visit):
    page, _, _ = visit(375)
    sizes = page.evaluate(
        """[...document.querySelectorAll('svg.chart')].filter(c => c.getBoundingClientRect().width > 0)
           .map(c => 11.5 * c.getBoundingClientRect().width / Number(c.dataset.width))"""
    )
    assert min(sizes) > 10


def test_hovering_and_the_arrow_keys_show_the_number(visit):
    page, _, _ = visit(1440)
    mark = page.locator("#run-1-accuracy .wide .mark").first
    mark.hover()
    assert page.locator("#tip").inner_text() == mark.get_attribute("data-tip")
    page.locator("#run-1-accuracy .wide svg.chart").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    second = page.locator("#run-1-accuracy .wide .mark").nth(1)
    assert page.locator("#tip").inner_text() == second.get_attribute("data-tip")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_dark_mode_is_dark_and_base_keeps_its_hue(visit):
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = (visit(1440, scheme)[0].evaluate(colour) for scheme in ("light", "dark"))
    assert min(channels(light)) > 200
    assert max(channels(dark)) < 60


def channels(colour):
    return [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]


def test_a_table_can_be_taken_away(visit):
    page, _, _ = visit(1440)
    with page.expect_download() as started:
        page.locator("#run-1-accuracy .downloads a", has_text="CSV").first.click()
    download = started.value
    assert download.suggested_filename == "accuracy.csv"
    assert download.path().read_text().startswith("classifier,attack,threat,n,seed,clean,clean low,clean high")


def test_figures_are_numbered_from_one_without_gaps(visit):
    page, _, _ = visit(1440)
    numbers = page.locator("figcaption b").all_inner_texts()
    assert numbers == [f"Figure {place}." for place in range(1, len(numbers) + 1)]


def test_printing_shows_everything_and_no_controls(visit):
    page, _, _ = visit(1440)
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert page.locator(".downloads").first.is_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_names_with_scripts_in_them_run_nothing(browser, tmp_path):
    evil = "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"
    names: dict[str, Any] = dict.fromkeys(("label", "model", "data", "attack"), evil)
    RunDir.open(tmp_path / evil.replace("/", ""), command=evil).write_result(
        "a", replace(robust("base", (52, 16, 1, 0), 64), **names, notes=(Note(evil, evil),))
    )
    page = browser.new_page()
    page.goto(write_report(tmp_path / evil.replace("/", ""), out=tmp_path / "r.html").as_uri())
    assert evil in page.evaluate("document.body.innerText + document.body.textContent")
    assert page.title() != "ran"
    policy = page.evaluate("document.querySelector('meta[http-equiv=Content-Security-Policy]').content")
    assert policy.startswith("default-src 'none'")
    page.close()
