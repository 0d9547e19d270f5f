"""The whole way in a real Chromium with a real worker: launch the demo search, watch it, switch heads, share the view."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import Browser, Page, expect

from cel_core.heads import HeadSet
from cel_core.records import Part, Status
from cel_core.store import Store
from cel_core.worker import Worker
from tests.pages.conftest import served
from tests.pages.test_browser import Visit

PATIENCE_S = 120
expect.set_options(timeout=1000 * PATIENCE_S)


class Workshop:
    """A dashboard with a worker that works."""

    def __init__(self, store: Store, worker: Worker, address: str) -> None:
        self.store, self.worker, self.address = store, worker, address


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    store = Store(tmp_path_factory.mktemp("workshop") / "cel.duckdb")
    worker = Worker(store.path)
    worker.start()
    for address in served(store, worker):
        yield Workshop(store, worker, address)
    worker.close()


@pytest.fixture
def visit(chromium: Browser, workshop: Workshop) -> Iterator[Visit]:
    found = Visit(chromium, workshop.address, "light")
    yield found
    found.context.close()
    assert found.complaints == []


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition to hold, and return what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


def launch(visit: Visit, discovery: int, held_out: int, p: int = 3, k: int = 2, full: bool = False) -> str:
    """Fill in the form and start the search; its id."""
    page = visit.open("/")
    page.get_by_role("button", name="New search").click()
    for label, number in (("Discovery examples", discovery), ("Held-out examples", held_out), ("p", p), ("k", k)):
        page.get_by_label(re.compile(f"^{label}")).fill(str(number))
    if full:
        page.get_by_label("Full sweep").check()
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Start the search").click()
    page.wait_for_url("**/search?run=*")
    return page.url.partition("run=")[2]


@pytest.fixture(scope="module")
def demo(chromium: Browser, workshop: Workshop) -> str:
    """The demo search, launched from the form and watched to its end."""
    visit = Visit(chromium, workshop.address, "dark")
    search = launch(visit, 60, 60)
    expect(visit.page.locator(".status")).to_have_text("done")
    expect(visit.page.locator(".headline .v").first).to_contain_text("→")
    visit.context.close()
    assert visit.complaints == []
    return search


def off(page: Page) -> list[str]:
    """Heads that are off, as the map shows them."""
    return page.locator('button.cell[aria-pressed="true"]').evaluate_all("cells => cells.map((c) => c.dataset.head).sort()")


def settled(page: Page, n: int = 60) -> None:
    """Wait until counters, strip and address all speak of the heads that are off on the map, with every example counted."""
    expect(page.locator("button.cell").first).to_be_visible()
    head_set = HeadSet.parse(",".join(off(page)))
    heads = str(head_set) or "none"
    expect(page.locator(".counts")).to_have_attribute("data-heads", str(head_set))
    expect(page.locator(".strip")).to_have_attribute("data-address", re.compile(f'"heads": "{heads}"'))
    expect(page.locator(".offline .end .sub")).to_have_text(f"{n} of {n} examples")
    expect(page).to_have_url(re.compile(f"heads={heads}(&|$)"))


def test_a_search_is_launched_from_the_form_and_found_again(visit: Visit, workshop: Workshop, demo: str):
    record = workshop.store.search(demo)
    assert record.status is Status.DONE and (record.n_discovery, record.n_held_out, record.config.p) == (60, 60, 3)
    page = visit.open("/")
    page.locator(f'tr[data-href="/search?run={demo}"]').click()
    expect(page.locator("h1")).to_have_text("demo on Carry")
    page.get_by_role("link", name="Open live").click()
    expect(page.locator(".counts")).to_be_visible()
    assert record.frozen_set is not None and off(page) == sorted(map(str, record.frozen_set))


def test_a_flip_is_written_out_on_request_and_goes_on_live(visit: Visit, demo: str):
    page = visit.open(f"/search?run={demo}")
    page.get_by_role("tab", name="Flips").click()
    page.locator("tr[data-key]:visible").first.click()
    asked = page.locator(".inspector pre").first.inner_text()
    page.get_by_role("button", name="Let the model write both answers out").click()
    expect(page.locator(".inspector .said")).to_have_count(2)
    page.get_by_role("link", name="Open it live").click()
    expect(page).to_have_url(re.compile("/live"))
    expect(page.locator(".inspector pre").first).to_have_text(asked)
    page.locator(".bar a", has_text="Search").last.click()
    expect(page.locator(".inspector pre").first).to_have_text(asked)  # and back


def test_the_form_refuses_in_one_line_and_estimates(visit: Visit, workshop: Workshop, demo: str):
    page = visit.open("/")
    page.get_by_role("button", name="New search").click()
    expect(page.locator(".card.form")).to_contain_text("at most 115,200 evaluations")
    page.get_by_label(re.compile("^k")).fill("12")
    page.get_by_role("button", name="Start the search").click()
    expect(page.locator(".form .notice.bad")).to_contain_text("K = 12 is larger than p = 10")
    assert page.url.rstrip("/") == visit.address and len(workshop.store.searches()) == 1


def test_a_switched_head_moves_the_counters_and_the_store_has_it(visit: Visit, workshop: Workshop, demo: str):
    page = visit.open(f"/live?run={demo}&heads=none")
    settled(page)
    expect(page.locator(".counts .v").nth(3)).to_have_text("0")
    page.locator('[data-head="L2H2"]').click()
    page.locator('[data-head="L0H5"]').click()
    settled(page)
    assert "heads=L0H5,L2H2" in page.url and off(page) == ["L0H5", "L2H2"]
    (api,) = [Client(workshop.address, verbose=False)]
    found = api.predict(demo, "L0H5,L2H2", "held-out", 60, api_name="/evaluate")
    assert found["n"] == found["n_in_all"] == 60
    expect(page.locator(".counts .v").nth(3)).to_have_text(str(found["fixes"]))
    expect(page.locator(".counts .v").nth(4)).to_have_text(str(found["harms"]))


def test_stored_outcomes_need_no_worker(visit: Visit, workshop: Workshop, demo: str, monkeypatch: pytest.MonkeyPatch):
    asked = list[object]()
    monkeypatch.setattr(workshop.worker, "live", lambda *request: asked.append(request))
    page = visit.open(f"/live?run={demo}&part=discovery&heads=none")
    settled(page)
    page.get_by_role("button", name="Best singles").click()
    settled(page)
    page.get_by_role("button", name="Best singles").click()
    settled(page)
    assert asked == [] and len(off(page)) == 1


def test_switches_obey_keyboard_and_ranges(visit: Visit, demo: str):
    page = visit.open(f"/live?run={demo}&heads=L0H0&part=discovery")
    settled(page)
    page.locator('[data-head="L0H0"]').focus()
    for key in ("ArrowRight", "ArrowUp", "Space"):
        page.keyboard.press(key)
    assert off(page) == ["L0H0", "L1H1"]
    assert page.evaluate("document.activeElement.dataset.head") == "L1H1"
    page.locator('[data-head="L2H2"]').click(modifiers=["Shift"])
    assert off(page) == ["L0H0", "L1H1", "L1H2", "L2H1", "L2H2"]
    page.locator('[data-row="0"]').click(modifiers=["Shift"])
    assert len(off(page)) == 4 + 8
    page.locator('[data-row="0"]').click(modifiers=["Shift"])
    page.locator('[data-column="7"]').click(modifiers=["Shift"])
    assert off(page) == ["L0H7", "L1H1", "L1H2", "L1H7", "L2H1", "L2H2", "L2H7"]
    page.locator('[data-switch="L2H7"]').click()
    expect(page.locator('[data-head="L2H7"]')).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="None").click()
    settled(page)
    assert off(page) == [] and "heads=none" in page.url


def test_an_example_is_read_with_the_models_own_words(visit: Visit, workshop: Workshop, demo: str):
    page = visit.open(f"/live?run={demo}")
    settled(page)
    row = page.locator("tr[data-key]:visible").first
    key = row.get_attribute("data-key")
    row.click()
    record = workshop.store.search(demo)
    (context,) = [e.context for e in workshop.store.examples(demo, Part.HELD_OUT) if e.key == key]
    expect(page.locator(".inspector pre").first).to_have_text(context.strip())
    expect(page.locator(".inspector .said")).to_have_count(2)
    assert record.frozen_set is not None
    said = workshop.worker.explain(demo, str(key), record.frozen_set)
    assert page.locator(".inspector .said").all_inner_texts() == [said["intact"].strip(), said["ablated"].strip()]
    page.get_by_label("Try a prompt").fill("12 + 34 =")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator(".halves pre")).to_have_count(2)
    intact, _ = workshop.worker.answer(demo, "12 + 34 =", record.frozen_set)
    expect(page.locator(".halves pre").first).to_have_text(intact.strip())


def test_two_browsers_hold_their_own_heads(visit: Visit, chromium: Browser, demo: str):
    page = visit.open(f"/live?run={demo}&heads=L0H0&part=discovery")
    second = Visit(chromium, visit.address, "dark")
    elsewhere = second.open(f"/live?run={demo}&heads=L1H1&part=discovery")
    for each, head in ((page, "L0H2"), (elsewhere, "L2H2")):
        each.locator(f'[data-head="{head}"]').click()
    settled(page)
    settled(elsewhere)
    assert (off(page), off(elsewhere)) == (["L0H0", "L0H2"], ["L1H1", "L2H2"])
    assert page.locator(".offline .chip").all_inner_texts() == ["L0H0", "L0H2"]
    assert elsewhere.locator(".offline .chip").all_inner_texts() == ["L1H1", "L2H2"]
    third = second.open(page.url.removeprefix(visit.address))
    settled(third)
    assert off(third) == ["L0H0", "L0H2"]
    second.context.close()
    assert second.complaints == []


def test_forged_addresses_and_events_give_a_message(visit: Visit, demo: str):
    for words in ("run=zzzzzz", f"run={demo}&heads=L9H9", f"run={demo}&heads=%3Cimg%3E", f"run={demo}&part=other"):
        page = visit.open(f"/live?{words}")
        expect(page.locator(".notice.bad")).to_be_visible()
    page = visit.open(f"/live?run={demo}&example=forged")
    expect(page.locator(".inspector").first).to_contain_text("Pick an example")
    page.locator('[data-head="L0H0"]').evaluate("cell => { cell.dataset.head = 'L77H0'; }")
    page.locator('[data-head="L77H0"]').click()
    expect(page.locator(".notice.bad")).to_contain_text("L77H0 is not in this model")


def test_a_running_search_survives_a_reload_stops_and_goes_on(visit: Visit, workshop: Workshop, demo: str):
    search = launch(visit, 900, 300, p=10, k=3, full=True)
    page = visit.page
    until(lambda: workshop.store.search(search).done > 2000, "the search to advance")
    page.reload()
    bar = page.get_by_role("progressbar")
    expect(bar).to_be_visible()
    before = int(bar.get_attribute("aria-valuenow") or 0)
    until(lambda: int(bar.get_attribute("aria-valuenow") or 0) > before, "the reloaded page to advance")
    expect(page.locator(".bar [data-worker]")).to_contain_text(f"running {search}")
    page.get_by_role("button", name="Stop").click()
    until(lambda: workshop.store.search(search).status is Status.STOPPED, "the search to stop")
    until(lambda: workshop.worker.state().status == "idle", "the worker to be idle")
    expect(page.locator(".status")).to_have_text("stopped")
    kept = workshop.store.search(search).done
    page.get_by_role("button", name="Resume").click()
    until(lambda: workshop.store.search(search).done > kept, "the search to go on")
    expect(page.locator(".status")).to_have_text("running")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".status")).to_have_text("stopped")


def test_six_tabs_all_follow_a_running_search(visit: Visit, workshop: Workshop, demo: str):
    search = launch(visit, 900, 300, p=12, k=4, full=True)  # long enough for a busy machine to open six tabs
    until(lambda: workshop.store.search(search).done > 0, "the search to begin")
    tabs = [visit.page, *(visit.context.new_page() for _ in range(5))]
    for tab in tabs[1:]:
        tab.goto(f"{workshop.address}/search?run={search}")
    bars = [tab.get_by_role("progressbar") for tab in tabs]
    for bar in bars:
        expect(bar).to_be_visible()
    before = [bar.get_attribute("aria-valuenow") for bar in bars]
    for bar, was in zip(bars, before, strict=True):
        until(lambda bar=bar, was=was: bar.get_attribute("aria-valuenow") != was, "the tab to advance")
    workshop.worker.stop(search)
    for tab in tabs:
        expect(tab.locator(".status")).to_have_text("stopped")


def test_the_endpoints_answer_and_refuse(workshop: Workshop, demo: str):
    api = Client(workshop.address, verbose=False)
    assert demo in [found["search_id"] for found in api.predict(api_name="/list")]
    assert api.predict(demo, api_name="/search_status")["status"] == "done"
    rows = api.predict(demo, "L2H2", api_name="/outcomes")
    assert len(rows) == 60 and {"key", "gold", "intact_correct", "ablated_answer", "flip"} <= set(rows[0])
    held_out = workshop.store.search(demo).held_out
    assert held_out is not None
    assert len(api.predict(demo, api_name="/flips")) == held_out.fixes + held_out.harms
    found = api.predict(demo, "L0H3,L0H4", "discovery", 60, api_name="/evaluate")
    assert found["n"] == 60 and found["fixes"] - found["harms"] == pytest.approx(60 * found["gain"])
    for request in (("zzzzzz", "L2H2"), (demo, "L9H9"), (demo, "L2H2", "other")):
        with pytest.raises(AppError, match="there is no search|is not in this model|is no side"):
            api.predict(*request, api_name="/evaluate")
