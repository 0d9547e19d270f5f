"""A page's frame stands in its HTML, and gives way to the page."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from cel_core.store import Store
from pages import first_paint
from pages.layout import PAGES
from tests.pages.conftest import served
from tests.pages.test_browser import Visit


@pytest.fixture
def visit(chromium: Browser, store: Store) -> Iterator[Visit]:
    with_pages = served(store)
    found = Visit(chromium, next(with_pages), "light")
    yield found
    found.context.close()
    next(with_pages, None)
    assert found.complaints == []


def test_a_frame_goes_in_front_of_the_empty_page_and_its_style_sheets_behind():
    page = b'<head><link rel="stylesheet" crossorigin href="./a.css"></head><body><gradio-app></gradio-app></body>'
    sheet = b'<link rel="stylesheet" crossorigin href="./a.css">'
    assert first_paint.framed(page, rb"\1<i>") == (rb"<head></head><body>\1<i>" + sheet + b"<gradio-app></gradio-app></body>")
    assert first_paint.framed(b"Not Found", b"<i>") == b"Not Found"


def test_every_page_has_a_frame_of_its_own():
    frames = first_paint.FirstPaint(lambda *_: None).frames  # type: ignore[arg-type, return-value]
    assert list(frames) == ["/", "/search", "/live", "/toy"]
    for name, path in PAGES:
        assert f"<h1>{name}</h1>".encode() in frames[path]


def test_the_frame_stands_while_nothing_of_gradio_has_come_and_is_gone_once_the_page_stands(visit: Visit):
    page = visit.page
    page.route("**/assets/*", lambda _: None)  # held until the route is given up
    page.goto(f"{visit.address}/live?run=abc", wait_until="commit")
    expect(page.locator(".early h1")).to_have_text("Live heads")
    assert page.locator(".early a", has_text="Searches").get_attribute("href") == "/"
    assert page.locator(".early a.on").get_attribute("href") == "/live?run=abc"
    assert page.locator(".gradio-container").count() == 0
    page.unroute("**/assets/*")
    expect(page.locator(".page h1")).to_have_text("Live heads")
    expect(page.locator(".early")).to_have_count(0)
