"""The pages in a real browser: no fault, no request, no overflow; search, keyboard, dark mode and paper."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from kerncfg.page.report import page, report, write
from kerncfg.page.sweep import compare
from tests.page.conftest import Opened, outcome, site
from tests.page.test_report import given_way

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">'\"&</style></script>"

# What is wider than the window, but for what scrolls by itself.
OVERFLOW = """() => [...document.querySelectorAll("body *")].filter(
  (each) => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".scroll, pre, .skip")
    && each.checkVisibility()
).map((each) => each.outerHTML.slice(0, 80))"""

# Words below the plots that run into the next.
CROWDED = """() => [...document.querySelectorAll(".axis")].flatMap((axis) => {
  const shown = [...axis.querySelectorAll("text")].filter((each) => each.getClientRects().length);
  const places = shown.map((each) => each.getBoundingClientRect());
  places.sort((one, other) => one.left - other.left);
  return places.slice(1).filter((each, before) => each.left < places[before].right + 2).map((each) => each.left);
})"""

LUMINANCE = (
    """() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"""
)


@pytest.fixture(params=["passed", "failed", "given way", "compared"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Each kind of page, from real runs, and one with everything there is on it."""
    if request.param == "given way":
        return write(page(given_way(tmp_path)), tmp_path / "report.html")
    if request.param == "compared":
        folders = [request.getfixturevalue("passed"), request.getfixturevalue("failed")]
        compare(*folders, output=tmp_path / "compare.html")
        return tmp_path / "compare.html"
    return report(request.getfixturevalue(request.param), tmp_path / "report.html")


def open_all(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")


def visible(page: Page) -> list[str]:
    """The paths of the sites in the tree that can be seen."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('#tree li[data-p]')].filter((e) => e.checkVisibility()).map((e) => e.dataset.p)"
    )
    return found


def test_a_page_says_nothing_to_the_console_and_asks_for_nothing(made: Path, opened: Opened) -> None:
    page = opened.open(made)
    open_all(page)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.wait_for_timeout(100)
    assert opened.said == []
    assert opened.asked == [made.absolute().as_uri()]


def test_a_page_may_ask_for_nothing_even_if_it_tried(made: Path, opened: Opened) -> None:
    page = opened.open(made)
    blocked = page.evaluate(
        """() => new Promise((done) => {
          addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
          const image = document.createElement("img");
          image.src = "http://127.0.0.1:9/pixel.png";
          document.body.append(image);
        })"""
    )
    assert blocked == "img-src"


@pytest.mark.parametrize("width", [320, 768, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window(made: Path, width: int, scheme: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(made.absolute().as_uri())
    open_all(page)
    assert page.evaluate(OVERFLOW) == []
    assert page.evaluate(CROWDED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_dark_and_light_are_the_systems_choice(made: Path, browser: Browser) -> None:
    found = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(made.absolute().as_uri())
        found[scheme] = page.evaluate(LUMINANCE)
        page.close()
    assert found["light"] > 700 > 120 > found["dark"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(made: Path, scheme: str, browser: Browser) -> None:
    page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(made.absolute().as_uri())
    open_all(page)
    assert page.evaluate((Path(__file__).parent / "contrast.js").read_text("utf-8")) == []
    page.close()


def test_the_filter_by_words_leaves_what_has_all_of_them(passed: Path, opened: Opened) -> None:
    page = opened.open(report(passed))
    before = visible(page)
    page.get_by_label("Find").fill("layers.1 norm")
    assert set(visible(page)) == {
        "model.layers.1.input_layernorm",
        "model.layers.1.post_attention_layernorm",
        "model.layers.1.self_attn.q_norm",
        "model.layers.1.self_attn.k_norm",
    }
    expect(page.locator("#shown")).to_have_text("4 of 15 sites")
    page.get_by_label("Find").fill("")
    assert visible(page) == before
    expect(page.locator("#shown")).to_have_text("15 sites")


def test_the_filter_by_name_status_and_kernel(passed: Path, opened: Opened) -> None:
    page = opened.open(report(passed))
    page.get_by_label("Status").select_option("off")
    assert visible(page) == ["model.layers.0.mlp", "model.layers.1.mlp"]
    page.get_by_label("Status").select_option("")
    page.get_by_label("Kernel").select_option("builtin:RMSNorm")
    assert len(visible(page)) == 9
    page.get_by_label("Name").select_option("SiLU")
    assert visible(page) == []
    expect(page.get_by_text("No site fits the filter.")).to_be_visible()


def test_a_site_leads_to_why_it_runs_what_it_runs(passed: Path, opened: Opened) -> None:
    page = opened.open(report(passed))
    reason = page.locator("#name-SwiGLUMLP").get_by_text("off, as the row says").first
    expect(reason).not_to_be_visible()
    page.locator("#tree a", has_text="SwiGLUMLP").first.click()
    expect(reason).to_be_visible()
    assert page.evaluate("document.activeElement.textContent").startswith("SwiGLUMLP")


def test_everything_can_be_done_from_the_keyboard(passed: Path, opened: Opened) -> None:
    page = opened.open(report(passed))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    page.keyboard.type("q_norm")
    assert len(visible(page)) == 2
    for _ in range(6):  # three selects, two buttons, the first line of the tree
        page.keyboard.press("Tab")
    focused = "document.activeElement.querySelector('b').textContent"
    assert page.evaluate(focused) == "model"
    page.keyboard.press("ArrowLeft")
    assert visible(page) == []
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "layers"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == "model"


def test_what_has_the_focus_is_outlined(passed: Path, opened: Opened) -> None:
    page = opened.open(report(passed))
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_every_control_has_a_name(made: Path, opened: Opened) -> None:
    page = opened.open(made)
    unnamed = """[...document.querySelectorAll("input, select, button, a, summary")].filter(
      (each) => !(each.textContent.trim() || (each.labels && each.labels.length))).length"""
    assert page.evaluate(unnamed) == 0
    headings = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((each) => Number(each.tagName[1]))")
    assert headings[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size") == page.evaluate(
        "document.querySelectorAll('[id]').length"
    )


def test_on_paper_everything_but_the_tree_is_unfolded_and_nothing_is_cut(made: Path, opened: Opened) -> None:
    page = opened.open(made)
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('main section:not(#modules) details:not([open])').length") == 0
    assert page.evaluate("[...document.querySelectorAll('form')].some((each) => each.checkVisibility())") is False
    assert page.pdf().startswith(b"%PDF")
    page.set_viewport_size({"width": 718, "height": 1000})  # what the margins of A4 leave
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.evaluate("[...document.querySelectorAll('table')].every((e) => e.getBoundingClientRect().right < 718)")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(LUMINANCE) == 3 * 255
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")


def test_what_a_plan_or_a_model_says_is_never_markup(tmp_path: Path, opened: Opened) -> None:
    rows = [
        site(f"model.{HOSTILE}", HOSTILE, kernel=f"builtin:{HOSTILE}", reason=HOSTILE),
        site("model.fine", "Fine", kernel=None, reason=HOSTILE),
    ]
    found = outcome(rows, tmp_path, overrides=[f"x={HOSTILE}"], command=["kerncfg", "run", HOSTILE])
    page_ = opened.open(write(page(found), tmp_path / "report.html"))
    page_.wait_for_timeout(100)
    assert opened.said == []
    assert page_.title() != "taken"
    assert page_.evaluate("[document.scripts.length, document.images.length]") == [1, 0]
    page_.get_by_label("Find").fill("<script>")
    assert visible(page_) == [f"model.{HOSTILE}"]
    assert page_.locator("#command").text_content() == "kerncfg run " + _quoted(HOSTILE)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def test_ten_thousand_sites_are_a_page_of_less_than_five_megabytes(tmp_path: Path, opened: Opened) -> None:
    rows = [
        site(
            f"model.layers.{layer}.experts.{expert}.{name}", name, kernel=f"org/repo@v1:{name}" if expert % 2 else None
        )
        for layer in range(50)
        for expert in range(50)
        for name in ("gate_projection", "up_projection", "down_projection", "activation")
    ]
    file = write(page(outcome(rows, tmp_path)), tmp_path / "report.html")
    assert file.stat().st_size < 5_000_000
    page_ = opened.open(file)
    page_.get_by_label("Find").fill("layers.49.experts.7. up_proj")
    assert visible(page_) == ["model.layers.49.experts.7.up_projection"]
    assert opened.said == []
