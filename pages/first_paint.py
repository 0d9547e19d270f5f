"""A page's frame (bar, title, a bar that waits) in the HTML itself, so that it stands before Gradio's own program is there.

Gradio sends an empty page, and draws it once some fifty files have come. `FirstPaint` puts the frame in front of that, together
with the script that every page carries, which takes the frame away as soon as the page stands (dashboard.js). Gradio's style
sheet goes behind the frame: in a page's head it would keep all from being painted. Should Gradio never draw the page, the frame
goes by itself, so that whatever Gradio says instead is seen.
"""

import re
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages import layout
from pages.markup import Markup, join, tag

SCRIPT = Path(__file__).parent / "dashboard.js"
WAITS_S = 30
GRADIO = re.compile(rb"<gradio-app")  # where the empty page begins
SHEETS = re.compile(rb'<link rel="stylesheet"[^>]*>')
# Gradio's own style sheets, and with them the pages' (style.css), come later: what is drawn here has what it needs of them
STYLE = """
.early { %s position: fixed; inset: 0; z-index: 99; background: var(--bg); color: var(--ink);
  font: 14px/1.45 "IBM Plex Sans", system-ui, sans-serif; animation: gone 0s %ds forwards; }
body.dark .early { %s }
@keyframes gone { to { visibility: hidden; } }
.early nav { display: flex; gap: 24px; align-items: center; padding: 0 max(24px, calc(50%% - 836px)); height: 48px;
  background: var(--panel); border-bottom: 1px solid var(--line); }
.early a { color: var(--muted); text-decoration: none; padding: 13px 0; }
.early a.on { color: var(--ink); box-shadow: inset 0 -2px var(--accent); }
.early .r { margin-left: auto; color: var(--muted); font-size: 12px; display: flex; gap: 16px; }
.early button { border: 0; background: none; color: inherit; font: inherit; padding: 0; }
.early main { padding: 20px max(24px, calc(50%% - 836px)); }
.early h1 { font-size: 18px; line-height: 1.35; margin: 0 0 18px; font-weight: 600; }
.early .card { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 14px 16px; }
.early .prog { height: 4px; background: var(--line); border-radius: 2px; overflow: hidden; }
.early .prog i { display: block; height: 100%%; width: 30%%; background: var(--accent); }
"""


def frame(name: str) -> Markup:
    """The frame of the page of that name."""
    light, dark = (" ".join(f"--{use}: {colour};" for use, colour in each.items()) for each in (layout.LIGHT, layout.DARK))
    style = tag("style", Markup(STYLE % (light, WAITS_S, dark)))
    drawn = tag("div", layout.bar(name), tag("main", layout.loading(name)), css="early")
    return join([style, drawn, tag("script", Markup(SCRIPT.read_text()))])


def framed(page: bytes, drawn: bytes) -> bytes:
    """Gradio's HTML with a frame in front of the empty page; anything else as it is."""
    if not GRADIO.search(page):
        return page
    behind = drawn + b"".join(SHEETS.findall(page)) + b"<gradio-app"
    return GRADIO.sub(lambda _: behind, SHEETS.sub(b"", page), count=1)


class FirstPaint:
    """ASGI middleware that puts each page's frame into its HTML."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.frames = {path: frame(name).encode() for name, path in layout.PAGES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; all but those for a page pass through."""
        drawn = self.frames.get(scope.get("path", "").rstrip("/") or "/") if scope["type"] == "http" else None
        if drawn is None:
            await self.app(scope, receive, send)
            return
        begin: Message = {}
        body = bytearray()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                begin.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            whole = framed(bytes(body), drawn)
            length = (b"content-length", str(len(whole)).encode())
            begin["headers"] = [*((k, v) for k, v in begin["headers"] if k.lower() != length[0]), length]
            await send(begin)
            await send({"type": "http.response.body", "body": whole})

        await self.app(scope, receive, answer)
