"""A store filled with made-up searches, and the dashboard on it, served from this process."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, sync_playwright

from cel_core.store import Store
from cel_core.worker import Worker
from tests.pages import made_up

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "cel.duckdb")


@pytest.fixture(scope="session")
def searches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, str]]:
    """A store with one search of every state, and their ids; tests only read it."""
    filled = Store(tmp_path_factory.mktemp("store") / "cel.duckdb")
    return filled, made_up.every_state(filled)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def served(store: Store, worker: Worker | None = None) -> Iterator[str]:
    """The dashboard's address, while the test runs; without a worker, one that was never started."""
    import app  # noqa: PLC0415  Gradio takes seconds to import, and most tests do without

    worker = worker or Worker(store.path)
    demo = app.build(store, worker)
    yield app.launch(demo, store, worker, free_port()).rstrip("/")
    demo.close()


def handlers(store: Store, worker: Worker) -> dict[tuple[str, str], Callable[..., Any]]:
    """The pages' own functions, by module and name, as an event calls them."""
    import app  # noqa: PLC0415  Gradio takes seconds to import, and most tests do without

    functions = (found.fn for found in app.build(store, worker).fns.values())
    return {(f.__module__, f.__name__): f for f in functions if f is not None}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A real Chromium: Debian's or Playwright's own; without one, tests are skipped, and fail in CI."""
    options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync"]
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        try:
            browser = playwright.chromium.launch(executable_path=found, args=options)
        except Error as error:
            reason = f"no Chromium: install Debian's package chromium, or run playwright install chromium ({error})"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        yield browser
        browser.close()
