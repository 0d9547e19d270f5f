"""Measure the dashboard in a real Chromium, on a store of 50 searches and two million made-up outcomes.

1. `scripts.made_up_store` fills a store, once: `--store FILE` keeps it for the next time.
2. *Handlers*: what the pages' functions take in this process, on the store, without a server.
3. *Pages*: ``app.py`` is started on the store; every page is opened several times, in turn, with an empty cache. Two moments
   are taken, in ms after the address is asked for: the first contentful paint (the browser's own entry), and the frame that
   shows the page's own data, such as a table's rows.
4. *Switches*: on Live, heads whose outcomes are stored are switched: the HTTP round trip, and from the click to the frame
   with the counters of that very set.
5. *Tabs*: the demo search is started from the form, on a copy of the store, and six tabs follow it: every request of theirs,
   from being asked to being answered, which includes waiting for one of the browser's connections.

Wall time tells what a user waits for, on this machine with all else that it does: the load is said beside it. CPU time says
what the dashboard itself is to blame for: the server's (all threads), and that of the page's main thread in the browser. Not
measured: switches that need the model.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
from playwright.sync_api import Browser, Page, Request, Response, sync_playwright

import app
from cel_core.heads import HeadSet
from cel_core.records import Part
from cel_core.store import Store
from cel_core.worker import Worker
from pages import live
from scripts import made_up_store

PAINT_MS, HANDLER_MS, SWITCH_MS, POLL_MS = 1500, 100, 300, 1000  # targets, on two cores that do nothing else but a search
START_S, PATIENCE_MS = 120, 60_000
N_TABS, TABS_S = 6, 20  # tabs that follow one search, and for how long
SETTLE_MS = 1200  # between two switches, so that each is alone
# what stands on a page once its own data is there: so many elements of a selector
DATA = {
    "/": ("tbody tr", 50),
    "/search": ("table[data-table=singles] tbody tr", 672),
    "/live": ("button[data-head]", 672),
    "/toy": (".plot svg.marks", 1),
}
# the moment of the frame from which `holds()` does
WATCH = """
window.celFrame = (holds) => new Promise((resolve) => {
  const drawn = () => requestAnimationFrame(() => setTimeout(() => resolve(performance.now())));
  const look = () => (holds() ? drawn() : setTimeout(look, 5));
  look();
});
"""
SWITCHED = """([head, heads]) => {
  const began = performance.now();
  document.querySelector(`button[data-head="${head}"]`).click();
  return celFrame(() => document.querySelector(".counts").dataset.heads === heads).then((shown) => shown - began);
}"""


@dataclass
class Timed:
    """One thing measured again and again."""

    what: str
    target_ms: float | None = None
    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)  # of the server, or of this process where it is the server
    page_cpu_ms: list[float] = field(default_factory=list)  # of the page's main thread

    @contextmanager
    def turn(self, cpu_s: Callable[[], float] = time.process_time) -> Iterator[None]:
        """One turn, by the clock."""
        began, before = time.perf_counter(), cpu_s()
        yield
        self.wall_ms.append(1000 * (time.perf_counter() - began))
        self.cpu_ms.append(1000 * (cpu_s() - before))

    def as_json(self) -> dict[str, Any]:
        """Figures as plain data."""
        found: dict[str, Any] = {"what": self.what, "target_ms": self.target_ms, "n": len(self.wall_ms)}
        found |= {"median_ms": round(statistics.median(self.wall_ms), 1), "worst_ms": round(max(self.wall_ms), 1)}
        for name, values in (("cpu_ms", self.cpu_ms), ("page_cpu_ms", self.page_cpu_ms)):
            found[name] = round(statistics.median(values), 1) if values else None
        return found


def handlers(store: Store, search: str, repeats: int) -> list[Timed]:
    """The pages' own functions, in this process."""
    demo = app.build(store, Worker(store.path))
    functions = {(f.fn.__module__, f.fn.__name__): f.fn for f in demo.fns.values() if f.fn is not None}

    def request(**query: str) -> SimpleNamespace:
        return SimpleNamespace(query_params=query, session_hash="bench")

    opened = [Timed(f"{name} opens") for name in ("/", "/search", "/live")]
    walk, record = made_up_store.walk(store, search), store.search(search)
    switched = {part: Timed(f"/live switches, {part}", HANDLER_MS) for part in Part}
    for _ in range(repeats):
        with opened[0].turn():
            functions["pages.searches", "look"]()
        for timed, name in zip(opened[1:], ("search", "live"), strict=True):
            with timed.turn():
                functions[f"pages.{name}", "opened"](request(run=search))
        for part, timed in switched.items():
            for _, head_set in walk:
                view = live.View(record, part, HeadSet())
                event = SimpleNamespace(_data={"heads": str(head_set)})
                with timed.turn():
                    functions["pages.live", "toggled"](view, request(), event)
    return [*opened, *switched.values()]


@contextmanager
def served(path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """``app.py`` on a store, once its worker is idle: address and process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "app.py", "--store", str(path), "--port", str(port)]
    process = subprocess.Popen(command, cwd=Path(app.__file__).parent, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address, process)
        yield address, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def pages(browser: Browser, address: str, server: psutil.Process, search: str, repeats: int) -> list[Timed]:
    """Every page opened with an empty cache: first paints, and moments of the data."""
    paints = {path: Timed(f"{path} first paint", PAINT_MS) for path in DATA}
    data = {path: Timed(f"{path} data") for path in DATA}
    for _ in range(repeats):
        for path in DATA:
            before = _cpu_s(server)
            with _opened(browser, address, path, search) as opened:
                data[path].page_cpu_ms.append(1000 * opened.cpu_s())
                paint = opened.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
                paints[path].wall_ms.append(paint)
                data[path].wall_ms.append(opened.shown_ms)
                data[path].cpu_ms.append(1000 * (_cpu_s(server) - before))
    return [timed for path in DATA for timed in (paints[path], data[path])]


def switches(
    browser: Browser, address: str, server: psutil.Process, store: Store, search: str, repeats: int
) -> tuple[list[Timed], list[float]]:
    """Heads switched in the browser, on both sides; and the size of an answer, in KiB."""
    walk = made_up_store.walk(store, search)
    found, sizes = [], []
    for part in Part:
        trip, click = Timed(f"switch, {part}, round trip"), Timed(f"switch, {part}, click to drawn", SWITCH_MS)
        with _opened(browser, address, "/live", search, f"&part={part}&heads={live.NO_HEADS}") as (page, _, page_cpu_s):
            page.evaluate("celFrame(() => !document.querySelector('.stale'))")
            for head, head_set in walk * repeats:
                before, page_before = _cpu_s(server), page_cpu_s()
                with page.expect_response(lambda response, heads=str(head_set): _asks(response, heads)) as waiting:
                    click.wall_ms.append(page.evaluate(SWITCHED, [str(head), str(head_set)]))
                sizes.append(len(waiting.value.body()) / 1024)
                click.page_cpu_ms.append(1000 * (page_cpu_s() - page_before))
                click.cpu_ms.append(1000 * (_cpu_s(server) - before))
                timing = waiting.value.request.timing
                trip.wall_ms.append(timing["responseEnd"] - timing["requestStart"])
                page.wait_for_timeout(SETTLE_MS)
        found += [trip, click]
    return found, sizes


def tabs(browser: Browser, address: str) -> list[Timed]:
    """Six tabs of one browser on one running search: each of their requests."""
    timed = {"/worker": Timed(f"{N_TABS} tabs, the bar asks", POLL_MS), "/run/": Timed(f"{N_TABS} tabs, a page asks", POLL_MS)}

    def answered(request: Request) -> None:
        for part, one in timed.items():
            if part in request.url:
                one.wall_ms.append(request.timing["responseEnd"])

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    first = context.new_page()
    first.goto(address)
    first.get_by_role("button", name="New search").click()
    first.get_by_label("Full sweep").check()
    first.get_by_role("button", name="Start the search").click()
    first.wait_for_url("**/search?run=*")
    opened = [first, *(context.new_page() for _ in range(N_TABS - 1))]
    for page in opened[1:]:
        page.goto(first.url)
    for page in opened:
        page.wait_for_function("document.querySelector('[role=progressbar]')?.ariaValueNow > 0")
        page.on("requestfinished", answered)
    first.wait_for_timeout(1000 * TABS_S)
    if first.locator(".status").inner_text() != "running":
        raise SystemExit("error: the search ended before the tabs were measured")
    context.close()
    return list(timed.values())


class Opened(NamedTuple):
    """A page whose data is drawn."""

    page: Page
    shown_ms: float  # when that was, after its address was asked for
    cpu_s: Callable[[], float]  # what its main thread has used up so far


@contextmanager
def _opened(browser: Browser, address: str, path: str, search: str, words: str = "") -> Iterator[Opened]:
    """A page in a context of its own, which has nothing cached."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(WATCH)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    inspected = context.new_cdp_session(page)
    inspected.send("Performance.enable", {"timeDomain": "threadTicks"})

    def cpu_s() -> float:
        metrics = inspected.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    page.goto(f"{address}{path}" + (f"?run={search}{words}" if path in ("/search", "/live") else ""), wait_until="commit")
    shown_ms = page.evaluate(
        "([selector, n]) => celFrame(() => document.querySelectorAll(selector).length >= n)", list(DATA[path])
    )
    yield Opened(page, shown_ms, cpu_s)
    context.close()


def _wait_for(address: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the server answers and its worker has nothing to do."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/worker") as answer:
                if json.load(answer)["state"] == "idle":
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"error: app.py did not come up in {START_S} s: run it by itself to see why")


def _asks(response: Response, heads: str) -> bool:
    """Whether this answers the switch to that head set."""
    if "/run/" not in response.url:
        return False
    event = json.loads(response.request.post_data or "{}").get("event_data")
    return isinstance(event, dict) and event.get("heads") == heads


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def measured(path: Path, repeats: int, only: str | None) -> dict[str, Any]:
    """Everything, or one part, as plain data.

    Args:
        path: the store, filled where it is not there.
        repeats: how often each page is opened, and each switch thrown.
        only: handlers, pages, switches or tabs; None for all.
    """
    if not path.exists():
        print("filling the store", file=sys.stderr)
        made_up_store.fill(path)
    store = Store(path)
    search = next(record.id for record in store.searches() if record.config.model == made_up_store.LARGE.model)
    found: dict[str, Any] = {"n_cores": os.cpu_count(), "load_before": os.getloadavg(), "measured": []}
    timed: list[Timed] = handlers(store, search, repeats) if only in (None, "handlers") else []
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if only in (None, "pages", "switches"):
            with served(path) as (address, server):
                if only != "switches":
                    timed += pages(browser, address, server, search, repeats)
                if only != "pages":
                    switched, sizes = switches(browser, address, server, store, search, repeats)
                    timed += switched
                    found["answer_kib"] = round(statistics.median(sizes), 1)
        if only in (None, "tabs"):
            copy = Path(shutil.copy(path, folder))  # the search that is followed goes into it
            with served(copy) as (address, _):
                timed += tabs(browser, address)
        browser.close()
    return found | {"load_after": os.getloadavg(), "measured": [one.as_json() for one in timed]}


def show(found: dict[str, Any]) -> str:
    """The figures as a table."""
    before, after = (found[name][0] for name in ("load_before", "load_after"))
    lines = [f"{found['n_cores']} cores, load {before:.1f} before and {after:.1f} after (1 min)"]
    if "answer_kib" in found:
        lines.append(f"a switch is answered in {found['answer_kib']:.0f} KiB")
    lines.append(f"{'ms':38}{'median':>8}{'worst':>8}{'server CPU':>12}{'page CPU':>10}{'target':>8}{'n':>5}")
    for one in found["measured"]:
        names = {"median_ms": 8, "worst_ms": 8, "cpu_ms": 12, "page_cpu_ms": 10, "target_ms": 8}
        numbers = (f"{'' if one[name] is None else f'{one[name]:.0f}':>{width}}" for name, width in names.items())
        lines.append(f"{one['what']:38}{''.join(numbers)}{one['n']:5}")
    return "\n".join(lines)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="bench_ui", description="Measure the dashboard on a large made-up store.")
    parser.add_argument(
        "--store", type=Path, help="the made-up store; filled where it is not there (default: a temporary file)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="how often each page is opened (default: %(default)s)")
    parser.add_argument("--only", choices=("handlers", "pages", "switches", "tabs"), help="one of the four parts")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options.store or Path(folder) / "cel.duckdb", options.repeats, options.only)
    print(json.dumps(found, indent=2) if options.json else show(found))


if __name__ == "__main__":
    main()
