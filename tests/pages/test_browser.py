"""The dashboard in a real Chromium: what a user sees, clicks and shares, without one error in the console."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from cel_core.heads import all_heads
from cel_core.records import Part
from cel_core.store import Store
from tests.pages import made_up
from tests.pages.conftest import served

Searches = tuple[Store, dict[str, str]]
SLOW_MS = 20_000

expect.set_options(timeout=SLOW_MS)


@pytest.fixture(scope="session")
def site(searches: Searches) -> Iterator[str]:
    yield from served(searches[0])


class Visit:
    """A browser context whose console and requests are watched."""

    def __init__(self, browser: Browser, address: str, scheme: str, width: int = 1280) -> None:
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        self.page: Page = self.context.new_page()
        self.address, self.complaints = address, list[str]()
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda r: self.complaints.append(r.url) if not self.is_local(r.url) else None)

    def is_local(self, url: str) -> bool:
        return url.startswith((self.address, "data:", "blob:"))

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        expect(self.page.locator(".page h1")).to_be_visible()
        expect(self.page.locator("[aria-busy]")).to_have_count(0)
        return self.page


@pytest.fixture(params=["light", "dark"])
def visit(request: pytest.FixtureRequest, chromium: Browser, site: str) -> Iterator[Visit]:
    found = Visit(chromium, site, request.param)
    yield found
    found.context.close()
    assert found.complaints == []


@pytest.fixture
def light(chromium: Browser, site: str) -> Iterator[Visit]:
    found = Visit(chromium, site, "light")
    yield found
    found.context.close()
    assert found.complaints == []


def no_sideways_scroll(page: Page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_every_state_is_drawn_in_light_and_dark_without_a_complaint(visit: Visit, searches: Searches):
    page = visit.open("/")
    expect(page.locator("tbody tr")).to_have_count(len(searches[1]))
    assert no_sideways_scroll(page)
    for name, found in searches[1].items():
        page = visit.open(f"/search?run={found}")
        assert page.locator(".status").first.inner_text() in ("done", "running", "stopped", "failed"), name
        assert no_sideways_scroll(page), name
        page = visit.open(f"/live?run={found}")
        assert no_sideways_scroll(page), name
    assert not page.evaluate("Boolean(window.hacked)")


def test_a_row_opens_its_own_search_after_filtering_and_sorting(light: Visit, searches: Searches):
    page = light.open("/")
    page.get_by_role("button", name="Gain, points").click()
    page.get_by_role("button", name="Gain, points").click()
    page.get_by_placeholder("Filter by model").fill("arithmetic done")
    expect(page.locator("tbody tr:visible")).to_have_count(3)
    page.locator("tbody tr:visible", has_text="made-up-none").click()
    expect(page.locator("h1")).to_have_text("made-up-none on Arithmetic")
    assert page.url.endswith(f"/search?run={searches[1]['none']}")


def test_sorting_is_by_number_and_keeps_empty_cells_last(light: Visit):
    page = light.open("/")
    page.get_by_role("button", name="Gain, points").click()
    gains = page.locator("tbody tr td:nth-child(6)").all_inner_texts()
    numbers = [float(text.replace("−", "-")) for text in gains if text]
    assert numbers == sorted(numbers, reverse=True) and gains[len(numbers) :] == [""] * (len(gains) - len(numbers))


def test_heads_are_sorted_by_layer_and_index(light: Visit, searches: Searches):
    page = light.open(f"/search?run={searches[1]['large']}")
    page.get_by_role("button", name="Head", exact=True).click()
    shown = page.locator("table[data-table=singles] tbody td:nth-child(2)").all_inner_texts()
    assert shown == [str(head) for head in all_heads(36, 16)]


def test_live_finds_words_anywhere_in_a_prompt_and_in_answers_as_they_are_shown(light: Visit, searches: Searches):
    page = light.open(f"/live?run={searches[1]['boolq']}&part=discovery&heads=none")
    page.get_by_role("button", name="Unchanged 40").click()
    rows = page.locator("table[data-table=live] tbody tr:visible")
    expect(rows).to_have_count(40)
    for words, count in (
        ("river lies", 34),
        ("onerror", 6),
        ("no such words", 0),
    ):  # of the passage, of which no row shows a word
        page.get_by_placeholder("Search").fill(words)
        expect(rows).to_have_count(count)
    expect(page.locator(".listcard .empty:visible")).to_have_text("No example fits the filter.")
    page.get_by_placeholder("Search").fill("")
    expect(rows).to_have_count(40)


def test_a_flip_is_read_and_its_address_opens_it_again_elsewhere(light: Visit, searches: Searches, chromium: Browser):
    store, ids = searches
    page = light.open(f"/search?run={ids['large']}")
    page.get_by_role("tab", name="Flips").click()
    page.get_by_role("button", name="Harms").click()
    row = page.locator("tr[data-key]:visible").nth(1)
    key = row.get_attribute("data-key")
    row.click()
    record = store.search(ids["large"])
    assert record.frozen_set is not None
    paired = store.paired(record.id, Part.HELD_OUT, record.frozen_set)
    asked = paired[paired["key"] == key]["context"].iloc[0]
    expect(page.locator(".inspector pre").first).to_have_text(asked)
    assert f"example={key}" in page.url
    second = Visit(chromium, light.address, "dark")
    elsewhere = second.open(page.url.removeprefix(light.address))
    expect(elsewhere.locator(".inspector pre").first).to_be_visible()
    expect(elsewhere.locator(".inspector pre").first).to_have_text(asked)
    second.context.close()
    assert second.complaints == []


def test_flips_are_walked_by_keyboard(light: Visit, searches: Searches):
    page = light.open(f"/search?run={searches[1]['large']}")
    page.get_by_role("tab", name="Flips").click()
    page.locator("tr[data-key]").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("tr.sel")).to_have_count(1)
    second = page.locator("tr[data-key]").nth(1).get_attribute("data-key")
    assert f"example={second}" in page.url


def test_a_head_tells_its_numbers_when_pointed_at(light: Visit, searches: Searches):
    page = light.open(f"/search?run={searches[1]['large']}")
    page.locator(".cell.off").first.hover()
    expect(page.locator(".tip")).to_contain_text("fixes")


def test_unknown_and_hostile_addresses_give_a_message(light: Visit):
    for run in ("000000", "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", "'%20OR%201%3D1"):
        page = light.open(f"/search?run={run}")
        expect(page.locator(".notice.bad")).to_contain_text("There is no search")
    page.locator(".page a", has_text="Searches").click()
    expect(page.locator("h1")).to_have_text("Searches")


def test_navigation_keeps_the_open_search(light: Visit, searches: Searches):
    page = light.open(f"/search?run={searches[1]['done']}")
    page.locator(".bar a", has_text="Search").last.click()
    expect(page.locator("h1")).to_have_text("made-up-48 on Arithmetic")


def test_dark_is_chosen_and_kept(light: Visit):
    page = light.open("/")
    expect(page.locator("body")).not_to_have_class("dark")
    page.get_by_role("button", name="Dark or light").click()
    page = light.open("/search")
    expect(page.locator("body")).to_have_class("dark")


def test_tables_come_down_as_csv(light: Visit, searches: Searches):
    page = light.open(f"/search?run={searches[1]['done']}")
    with page.expect_download() as waiting:
        page.locator(".tools a.csv:visible").first.click()
    text = Path(waiting.value.path()).read_text()
    assert text.splitlines()[0].startswith("rank,heads,") and len(text.splitlines()) == 49


def test_an_open_page_follows_its_search_to_the_end(chromium: Browser, store: Store):
    running = made_up.halfway(store, made_up.Story(seed=0), upto=9)
    with_pages = served(store)
    visit = Visit(chromium, next(with_pages), "light")
    page = visit.open(f"/search?run={running.id}")
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "18")
    assert page.locator(".cell:not(.none)").count() == 8
    list(running.screening(33))
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "67")
    expect(page.locator(".cell:not(.none)")).to_have_count(32)
    running.finish()
    expect(page.locator(".status")).to_have_text("done")
    expect(page.locator(".headline .v").first).to_contain_text("→")
    expect(page.get_by_role("tab", name="Subsets 25")).to_be_visible()
    expect(page.locator(".plot .vega-embed svg").first).to_be_visible()
    visit.context.close()
    next(with_pages, None)
    assert visit.complaints == []


def test_open_switches_take_their_colours_from_a_running_search(chromium: Browser, store: Store):
    running = made_up.halfway(store, made_up.Story(seed=0), upto=9)
    with_pages = served(store)
    visit = Visit(chromium, next(with_pages), "light")
    page = visit.open(f"/live?run={running.id}&heads=none")
    coloured = page.locator("button.cell:not(.none)")
    expect(coloured).to_have_count(8)
    page.locator('[data-head="L0H3"]').click()
    expect(page.locator('.counts[data-heads="L0H3"]')).to_be_visible()
    list(running.screening(33))
    expect(coloured).to_have_count(32)
    assert page.evaluate("document.activeElement.dataset.head") == "L0H3"
    assert page.locator('button.cell[aria-pressed="true"]').count() == 1
    assert page.get_by_role("button", name="Held-out").is_disabled()
    running.finish()
    expect(page.get_by_role("button", name="Frozen set")).to_be_visible()
    expect(page.get_by_role("button", name="Held-out")).to_be_enabled()
    expect(coloured).to_have_count(48)
    expect(page.locator("button.cell.frozen")).to_have_count(len(store.search(running.id).frozen_set or ()))
    expect(page.locator('.counts[data-heads="L0H3"]')).to_be_visible()
    visit.context.close()
    next(with_pages, None)
    assert visit.complaints == []


def test_an_empty_store_says_how_to_begin(chromium: Browser, store: Store):
    with_pages = served(store)
    visit = Visit(chromium, next(with_pages), "light")
    expect(visit.open("/").locator(".notice")).to_contain_text("No searches yet")
    expect(visit.open("/search").locator(".notice")).to_contain_text("No searches yet")
    expect(visit.open("/live").locator(".notice")).to_contain_text("No searches yet")
    made_up.failed(store)
    expect(visit.open("/").locator("tbody tr")).to_have_count(1)
    visit.context.close()
    next(with_pages, None)
    assert visit.complaints == []
