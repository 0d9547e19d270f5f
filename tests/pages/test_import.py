"""A search leaves one dashboard and arrives in another, in a real Chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from cel_core.store import Store
from pages import searches as searches_page
from tests.pages.conftest import served
from tests.pages.test_browser import Visit

Searches = tuple[Store, dict[str, str]]


@pytest.fixture
def elsewhere(chromium: Browser, store: Store) -> Iterator[Visit]:
    """Another dashboard, whose store is empty."""
    with_pages = served(store)
    visit = Visit(chromium, next(with_pages), "dark")
    yield visit
    visit.context.close()
    next(with_pages, None)
    assert visit.complaints == []


def choose(page: Page, file: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import").click()
    chooser.value.set_files(file)


def test_a_search_is_exported_here_and_imported_there(
    chromium: Browser, searches: Searches, elsewhere: Visit, store: Store, tmp_path: Path
):
    there, ids = searches
    with_pages = served(there)
    visit = Visit(chromium, next(with_pages), "light")
    page = visit.open(f"/search?run={ids['done']}")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Export").click()
    assert waiting.value.suggested_filename == f"cel-search-{ids['done']}.zip"
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)
    headline = page.locator(".headline").inner_text()
    visit.context.close()
    next(with_pages, None)
    assert visit.complaints == []

    page = elsewhere.open("/")
    choose(page, file)
    n = there.bundle(ids["done"]).outcomes.num_rows
    expect(page.locator(".message .notice")).to_contain_text(f"Search {ids['done']} is imported, with {n:,} new outcomes")
    expect(page.locator("tbody tr")).to_have_count(1)
    choose(page, file)
    expect(page.locator(".message .notice")).to_contain_text(f"Search {ids['done']} is here already: nothing changed")
    page.get_by_role("link", name="Open it").click()
    expect(page.locator(".status")).to_have_text("done")
    assert page.locator(".headline").inner_text() == headline
    assert [record.id for record in store.searches()] == [ids["done"]]


def test_a_file_that_is_no_search_is_refused_in_one_line(elsewhere: Visit, store: Store, tmp_path: Path):
    (tmp_path / "holiday.zip").write_bytes(b"\x89PNG" + bytes(1000))
    page = elsewhere.open("/")
    choose(page, tmp_path / "holiday.zip")
    notice = page.locator(".message .notice.bad")
    expect(notice).to_contain_text("Bundle 'holiday.zip' cannot be imported")
    expect(notice).to_contain_text("It is no zip archive, or not all of one; export the search again where it came from")
    expect(page.locator(".notice", has_text="No searches yet")).to_be_visible()
    assert store.searches() == []


def test_the_message_takes_no_room_before_there_is_one(elsewhere: Visit):
    page = elsewhere.open("/")
    expect(page.locator(".block.message")).to_be_hidden()
    assert "Import" in searches_page.show_head([])
