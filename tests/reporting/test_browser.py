"""The page in chromium, driven by Playwright; skipped where there is no chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from fake_runs import METHODS, write_run
from robattr.reporting.export import write_records
from robattr.reporting.html import write_page
from robattr.reporting.run_results import read_runs

pytest.importorskip("axe_playwright_python", reason="pip install axe-playwright-python runs these tests")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = which("chromium") or which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium runs these tests"
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
NARROW = {"width": 320, "height": 640}  # WCAG 1.4.10: 1280 enlarged four times


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    return write_page(read_runs([write_run(root, method) for method in METHODS]), root / "report.html")


class Visit:
    """A tab of the browser, with the console messages, errors and requests of the page that it shows."""

    def __init__(self, page: Page) -> None:
        self.page, self.complaints, self.requests = page, [], []  # type: ignore[var-annotated]
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path, *, size: Any = DESKTOP, scheme: Any = "light", explorer: bool = True) -> Page:
        self.page.set_viewport_size(size)
        self.page.emulate_media(color_scheme=scheme)
        self.address = path.as_uri()
        self.complaints.clear()
        self.requests.clear()
        self.page.goto(self.address)
        if explorer:
            self.page.wait_for_selector("body[data-example]")
        return self.page

    def wait(self, **drawn: object) -> None:
        """Wait until the explorer has drawn that example, step, top-k state and amplification."""
        self.page.wait_for_selector("body" + "".join(f'[data-{key}="{value}"]' for key, value in drawn.items()))

    def pixels(self, card: int, panel: int) -> list[int]:
        """The pixels of a canvas of a card: 0 image, 1 perturbed, 2 map before, 3 map after, 4 change."""
        canvas = self.page.locator(".card").nth(card).locator("canvas").nth(panel)
        script = """(c) => {
            const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', { willReadFrequently: true });
            copy.drawImage(c, 0, 0);
            return [...copy.getImageData(0, 0, c.width, c.height).data];
        }"""
        found: list[int] = canvas.evaluate(script)
        return found

    def clean(self) -> None:
        assert self.complaints == []
        assert {url for url in self.requests if not url.startswith(("data:", "blob:"))} == {self.address}


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Visit:
    return Visit(browser.new_page())  # one for all tests: each tab starts two processes


@pytest.fixture
def visit(tab: Visit, report: Path) -> Iterator[Visit]:
    tab.open(report)
    yield tab
    tab.clean()


def test_it_loads_and_shows_every_model(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    assert page.locator(".card h3").all_inner_texts() == ["NATURAL", "Madry et al.", "IG-NORM", "IG-SUM-NORM"]
    assert page.locator("table.results tbody tr").count() == 4
    assert page.locator("svg.chart").count() == 7
    shot = page.screenshot(path=tmp_path / "desktop.png", full_page=True)
    assert len(shot) > 50_000


def test_canvases_show_the_gallerys_pixels_enlarged_without_blur(visit: Visit) -> None:
    image = visit.pixels(0, 0)
    assert len(image) == 28 * 28 * 4
    assert max(image[0::4]) > 150
    style = visit.page.locator(".card canvas").first
    assert style.evaluate("c => getComputedStyle(c).imageRendering") == "pixelated"
    assert style.evaluate("c => c.getBoundingClientRect().width / c.width") > 3


def test_choosing_another_example_changes_the_images(visit: Visit) -> None:
    before = visit.pixels(0, 0)
    other = visit.page.locator(".thumb").nth(3)
    wanted = other.get_attribute("data-id")
    other.click()
    visit.wait(example=wanted)
    assert visit.pixels(0, 0) != before
    assert f"example {wanted}" in visit.page.locator("#example-title").inner_text()
    assert other.get_attribute("aria-selected") == "true"


def test_order_and_class_filter(visit: Visit) -> None:
    page = visit.page
    shares = [int(text.rstrip("%")) for text in page.locator(".thumb span").all_inner_texts()]
    assert shares == sorted(shares)
    page.select_option("#sort", "id")
    assert page.locator(".thumb span").all_inner_texts() == [f"#{i}" for i in range(8)]
    page.locator(".thumb").first.click()
    page.select_option("#class", label="Trouser")
    assert [t.get_attribute("data-id") for t in page.locator(".thumb").all()] == ["1", "4", "7"]
    visit.wait(example=1)
    assert page.locator("#example-title strong").inner_text() == "Trouser"


def test_the_slider_runs_through_the_attack(visit: Visit) -> None:
    page, slider = visit.page, visit.page.locator("#step")
    assert page.locator("#step-out").inner_text() == "50"
    assert visit.pixels(0, 2) != visit.pixels(0, 3)
    slider.focus()
    page.keyboard.press("Home")
    visit.wait(step=0)
    assert visit.pixels(0, 0) == visit.pixels(0, 1)
    assert visit.pixels(0, 2) == visit.pixels(0, 3)
    assert page.locator(".card dd").first.inner_text() == "100%"
    page.keyboard.press("ArrowRight")
    visit.wait(step=1)
    assert slider.get_attribute("aria-valuetext") == "iteration 5 of 50"
    assert visit.pixels(0, 0) != visit.pixels(0, 1)


def test_a_record_shows_before_and_after_without_an_iteration(tab: Visit, tmp_path: Path, undrawn) -> None:
    """Its gallery has the reported iterate of each example alone, at different iterations."""
    write_records(read_runs([write_run(tmp_path, method) for method in ("natural", "madry")]), tmp_path / "records")
    page = tab.open(write_page(read_runs([tmp_path / "records"]), tmp_path / "report.html"))
    assert page.locator("#step-out").inner_text() == "after"
    assert page.locator(".spark text").first.text_content() == "after"
    page.locator("#step").focus()
    page.keyboard.press("Home")
    tab.wait(step=0)
    assert page.locator("#step").get_attribute("aria-valuetext") == "before"
    tab.clean()


def test_play_runs_to_the_end_and_stops(visit: Visit) -> None:
    # A loaded machine may miss a step while it is shown, so the page records them itself.
    visit.page.evaluate(
        """() => {
            const body = document.body, seen = [];
            const look = () => { seen.push(body.dataset.step); body.dataset.seen = seen.join(" "); };
            new MutationObserver(look).observe(body, {attributeFilter: ["data-step"]});
        }"""
    )
    visit.page.click("#play")  # from the end it starts again
    visit.page.wait_for_selector("body[data-seen='0 1 2 3 4 5 6'] #play:text-is('Play')")


def test_top_k_marks_exactly_k_pixels(visit: Visit) -> None:
    plain = visit.pixels(0, 2)
    visit.page.check("#topk")
    visit.wait(top="true")
    marked = visit.pixels(0, 2)
    pixels = [tuple(marked[i : i + 3]) for i in range(0, len(marked), 4)]
    assert sum(p in ((47, 208, 189), (255, 139, 61)) for p in pixels) == 100
    assert visit.page.locator("#change-key").is_visible(), "the images are grey"
    assert visit.page.locator("#topk-key").is_visible()
    visit.page.uncheck("#topk")
    visit.wait(top="false")
    assert visit.pixels(0, 2) == plain


def test_the_perturbation_can_be_amplified(visit: Visit) -> None:
    before = visit.pixels(0, 4)
    visit.page.select_option("#amplify", "1")
    visit.wait(amplify=1)
    assert visit.pixels(0, 4) != before


def test_everything_works_by_keyboard(visit: Visit) -> None:
    page = visit.page
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert reached[:9] == ["skip", "theme", "class", "sort", "thumb", "step", "play", "topk", "amplify"]
    page.locator(".thumb").first.focus()
    second = page.locator(".thumb").nth(1).get_attribute("data-id")
    page.keyboard.press("ArrowRight")
    visit.wait(example=second)
    assert page.evaluate("document.activeElement.dataset.id") == second
    page.locator("#topk").focus()
    page.keyboard.press("Space")
    visit.wait(top="true")


def test_every_picture_and_control_has_a_name(visit: Visit) -> None:
    nameless = visit.page.evaluate(
        """() => [...document.querySelectorAll('canvas[role=img], svg[role=img], select, input, button')]
             .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)))
             .map((e) => e.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (NARROW, "dark")])
def test_axe_finds_nothing(tab: Visit, report: Path, size: Any, scheme: Any) -> None:
    """WCAG 2.2 AA and axe's best practices, with everything unfolded."""
    page = tab.open(report, size=size, scheme=scheme)
    page.check("#topk")
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert violations(page) == []
    # Of text in a drawing axe cannot tell the contrast: it has the page's own colour and no background.
    texts = "[...document.querySelectorAll('svg.chart text')]"
    colours = page.evaluate(f"[...new Set([...{texts}, document.body].map((e) => getComputedStyle(e).color))]")
    assert len(colours) == 1
    assert page.evaluate(f"{texts}.every((e) => getComputedStyle(e).fill === getComputedStyle(document.body).color)")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def violations(page: Page) -> list[str]:
    """What axe finds: `color-contrast: <span class="small">…`."""
    options = {"resultTypes": ["violations"]}  # to list what passes as well takes three times as long
    found = Axe().run(page, options=options).response["violations"]
    return [f"{rule['id']}: {node['html']}" for rule in found for node in rule["nodes"]]


def test_light_and_dark(tab: Visit, report: Path) -> None:
    page = tab.open(report, scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    assert page.evaluate(f"{background}.match(/\\d+/g).every((v) => v < 40)")
    page.click("#theme")
    assert page.evaluate(background) != dark
    assert page.locator("#theme").inner_text() == "Dark"
    tab.clean()


def test_a_phone_never_scrolls_sideways(browser: Browser, report: Path) -> None:
    visit = Visit(browser.new_page(has_touch=True))
    page = visit.open(report, size=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator(".card canvas").first.bounding_box()["width"] > 120  # type: ignore[index]
    results = page.locator("table.results").first.locator("xpath=..")
    assert results.evaluate("box => box.scrollWidth > box.clientWidth")
    hint = results.locator("xpath=preceding-sibling::p[1]")
    assert "scroll it sideways" in hint.inner_text()
    results.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("box => box.scrollLeft > 0", arg=results.element_handle())
    page.set_viewport_size(DESKTOP)
    hint.wait_for(state="hidden")
    page.set_viewport_size(PHONE)
    hint.wait_for(state="visible")
    visit.clean()
    page.close()


def test_a_single_model_shows_its_worst_examples_side_by_side(tab: Visit, tmp_path: Path, undrawn) -> None:
    page = tab.open(write_page(read_runs([write_run(tmp_path, "natural")]), tmp_path / "one.html"))
    ids = [thumb.get_attribute("data-id") for thumb in page.locator(".thumb").all()]
    titles = page.locator(".card h3").all_inner_texts()
    assert [title.rpartition(" ")[2] for title in titles] == ids[:4]
    shares = [int(text.rstrip("%")) for text in page.locator(".thumb span").all_inner_texts()]
    assert shares == sorted(shares)
    assert tab.pixels(0, 0) != tab.pixels(1, 0)
    page.locator(".thumb").nth(6).click()  # two are left from there on
    tab.wait(example=ids[6])
    assert [card.is_visible() for card in page.locator(".card").all()] == [True, True, False, False]
    assert page.locator(".card h3").nth(1).inner_text().endswith(f"example {ids[7]}")
    tab.clean()


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("audit")
    run = write_run(root, "natural")
    for file in list((run / "records").iterdir()):  # another map, whose name makes the longest title
        written = file.with_name(file.name.replace("paper-ig", "strict-captum-InputXGradient"))
        shutil.copy(file, written)
        if file.suffix == ".json":
            named = {"protocol": "strict", "map": "captum-InputXGradient"}
            written.write_text(json.dumps({**json.loads(file.read_text()), **named}))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "name": "package.nets:make_my_net", "method": "audit"}))
    return write_page(read_runs([run]), root / "audit.html")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_an_audits_page_fits_the_screen(tab: Visit, audit: Path, size: dict[str, int]) -> None:
    page = tab.open(audit, size=size)
    assert page.locator("h2").first.inner_text() == "Verdict"
    assert page.locator("#group option").count() == 2
    assert violations(page) == []
    assert "worst over all attacks" in page.locator(".recorded").first.inner_text()  # strict: no one iteration has both
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    tab.clean()


def test_hostile_names_do_nothing(tab: Visit, tmp_path: Path, undrawn) -> None:
    run = write_run(tmp_path, "natural", classes=(HOSTILE, "b", "c")).rename(tmp_path / "a 'quoted' & <b>run")
    page = tab.open(write_page(read_runs([run]), tmp_path / "hostile.html", title=HOSTILE))
    assert page.title() == HOSTILE
    page.select_option("#class", label=HOSTILE)
    assert page.locator(".card h3").first.inner_text().startswith(HOSTILE)
    assert page.locator("img").count() == 0
    tab.clean()


def test_without_galleries_only_the_explorer_is_hidden(tab: Visit, tmp_path: Path, undrawn) -> None:
    path = write_page(read_runs([write_run(tmp_path, "natural", gallery=False)]), tmp_path / "plain.html")
    page = tab.open(path, explorer=False)
    assert page.locator("#explorer").is_hidden()
    assert page.locator("table.results").is_visible()
    page.click("#theme")
    tab.clean()


def test_several_groups_and_colour(tab: Visit, tmp_path: Path, undrawn) -> None:
    runs = [
        write_run(tmp_path, "natural"),
        write_run(tmp_path / "other", "madry", dataset="flower", colour=True, steps=3, examples=3),
    ]
    page = tab.open(write_page(read_runs(runs), tmp_path / "two.html"))
    assert page.locator("#example-title strong").inner_text() == "NATURAL"
    page.select_option("#group", label="flower · paper protocol · ig maps")
    page.wait_for_selector("#example-title strong:text-is('Madry et al.')")
    assert page.locator(".thumb").count() == 3
    tab.clean()
