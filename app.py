"""The dashboard: ``python app.py`` opens a store, mounts the pages and serves them on this machine.

Pages read the store on every request and keep nothing: reload, close the tab or open a second browser, and the same searches
are there, still advancing.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # the dashboard tells nobody that it runs
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import gradio as gr  # noqa: E402

from cel_core.errors import CelError  # noqa: E402
from cel_core.store import DEFAULT_PATH, Store  # noqa: E402
from pages import downloads, layout, search, searches  # noqa: E402


def build(store: Store) -> gr.Blocks:
    """All pages on one store."""
    with gr.Blocks(title="CEL", analytics_enabled=False, fill_width=True) as demo:
        searches.build(demo, store)
    with demo.route("Search", "/search"):
        search.build(demo, store)
    return demo


def launch(demo: gr.Blocks, store: Store, port: int, browser: bool = False, wait: bool = True) -> str:
    """Serve the pages on this machine.

    Returns:
        The address.
    """
    _, address, _ = demo.launch(
        server_name="127.0.0.1",
        server_port=port,
        inbrowser=browser,
        prevent_thread_lock=not wait,
        theme=layout.theme(),
        css_paths=[layout.STYLE],
        head=layout.head(),
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        share=False,
        ssr_mode=False,
        pwa=False,
        quiet=not wait,
        app_kwargs={"routes": downloads.routes(store)},
    )
    return address


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, and serve until interrupted."""
    parser = argparse.ArgumentParser(prog="app.py", description="The CEL dashboard.")
    parser.add_argument("--store", type=Path, default=DEFAULT_PATH, help="DuckDB file with the searches (default: %(default)s)")
    parser.add_argument("--port", type=int, default=7860, help="port on 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--browser", action="store_true", help="open a browser window as well")
    options = parser.parse_args(arguments)
    try:
        store = Store(options.store)
        launch(build(store), store, options.port, options.browser)
    except CelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: port {options.port} cannot be used ({error}): give another --port", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
