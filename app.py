"""The dashboard: ``python app.py`` opens a store, starts the worker, mounts the pages and serves them on this machine.

Pages read the store on every request and keep nothing: reload, close the tab or open a second browser, and the same searches
are there, still advancing. The worker is a process of its own, which owns the model; it ends with this one.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # the dashboard tells nobody that it runs
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import gradio as gr  # noqa: E402
from gradio.data_classes import BlocksConfigDict  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.routing import BaseRoute  # noqa: E402

from cel_core.bundle import MAX_BYTES  # noqa: E402
from cel_core.errors import CelError, ConfigError  # noqa: E402
from cel_core.store import DEFAULT_PATH, Store  # noqa: E402
from cel_core.worker import Worker  # noqa: E402
from pages import api, downloads, explanations, layout, live, search, searches, toy, toy_downloads, worker_line  # noqa: E402
from pages.first_paint import FirstPaint  # noqa: E402

PAGES = (("Search", "/search", search.build), ("Live heads", "/live", live.build), ("Toy model", "/toy", toy.build))


class Dashboard(gr.Blocks):
    """Blocks whose pages hold no connection open.

    With a `gr.State`, Gradio keeps one stream a tab to learn when it closes; a browser allows six connections to one host, so
    the sixth tab of a searching user would hang. What a closed tab leaves behind is small and goes with the oldest sessions.
    """

    def get_config_file(self) -> BlocksConfigDict:
        """See `gr.Blocks`."""
        config = super().get_config_file()
        config["connect_heartbeat"] = False
        return config


def build(store: Store, worker: Worker) -> gr.Blocks:
    """All pages on one store and one worker."""
    with Dashboard(title="CEL", analytics_enabled=False, fill_width=True) as demo:
        searches.build(demo, store, worker)
        api.build(store, worker)
    for name, path, page in PAGES:
        with demo.route(name, path):
            page(demo, store, worker)
    return demo


def routes(store: Store, worker: Worker) -> list[BaseRoute]:
    """What pages fetch outside Gradio's events: tables, a model's own words, the worker's state."""
    tables = [*toy_downloads.routes(store), *downloads.routes(store)]
    return [*tables, *explanations.routes(worker), *worker_line.routes(store, worker)]


def launch(
    demo: gr.Blocks, store: Store, worker: Worker, port: int, browser: bool = False, quiet: bool = True, mcp: bool = False
) -> str:
    """Serve the pages on this machine, in threads of this process.

    Args:
        demo: the pages.
        store: the store behind the downloads.
        worker: the worker whose state the bar shows.
        port: port on 127.0.0.1.
        browser: open a browser window as well.
        quiet: do not print the address.
        mcp: offer the named endpoints as MCP tools too.

    Returns:
        The address.

    Raises:
        ConfigError: MCP is asked for and not installed.
    """
    if mcp and importlib.util.find_spec("mcp") is None:
        raise ConfigError("--mcp needs Gradio's MCP extra, which is not installed: pip install 'gradio[mcp]'")
    _, address, _ = demo.launch(
        server_name="127.0.0.1",
        server_port=port,
        inbrowser=browser,
        prevent_thread_lock=True,
        theme=layout.theme(),
        css_paths=[layout.STYLE],
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        share=False,
        ssr_mode=False,
        pwa=False,
        quiet=quiet,
        mcp_server=mcp,
        max_file_size=MAX_BYTES,
        app_kwargs={"routes": routes(store, worker), "middleware": [Middleware(FirstPaint)]},
    )
    return address


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, and serve until interrupted."""
    parser = argparse.ArgumentParser(prog="app.py", description="The CEL dashboard.")
    parser.add_argument("--store", type=Path, default=DEFAULT_PATH, help="DuckDB file with the searches (default: %(default)s)")
    parser.add_argument("--port", type=int, default=7860, help="port on 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--browser", action="store_true", help="open a browser window as well")
    parser.add_argument("--mcp", action="store_true", help="offer the named endpoints as MCP tools too")
    options = parser.parse_args(arguments)
    worker = None
    try:
        store, worker = Store(options.store), Worker(options.store)
        demo = build(store, worker)
        worker.start()
        launch(demo, store, worker, options.port, options.browser, quiet=False, mcp=options.mcp)
        demo.block_thread()
    except CelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: port {options.port} cannot be used ({error}): give another --port", file=sys.stderr)
        return 2
    finally:
        if worker is not None:
            worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
