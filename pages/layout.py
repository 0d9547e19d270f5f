"""What all pages share: theme, style, navigation bar, the browser's small script, and the one place that explains errors."""

import json
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components.plot import PlotData

from cel_core.errors import CelError
from pages.markup import Markup, join, notice, tag

HERE = Path(__file__).parent
STYLE = HERE / "style.css"
TITLE = "CEL"
PAGES = (("Searches", "/"), ("Search", "/search"), ("Live heads", "/live"), ("Toy model", "/toy"))
# a page's HTML changes in place when an event ends; filters, sorting and ages are the browser's and are put back after that
RESTORE = "watch('value', () => window.cel.restore(element)); window.cel.restore(element);"
# buttons marked `data_press` tell the server their name: listen with `.press`, and check the name
PRESS = RESTORE + "window.cel.pressable(element, (name) => trigger('press', {name}));"


LIGHT = {"bg": "#fbfbfa", "panel": "#ffffff", "line": "#e4e4e0", "ink": "#1c1d1f", "muted": "#64676c", "accent": "#2f5d9b"}
DARK = {"bg": "#141517", "panel": "#1b1d20", "line": "#2d3035", "ink": "#e8e8e6", "muted": "#9a9ea5", "accent": "#8ab4f0"}


def theme() -> gr.themes.Base:
    """The project's theme: neutral surfaces, one accent, a line around each card, fonts that Gradio carries with it."""
    uses = {
        "bg": ["body_background_fill", "background_fill_secondary", "code_background_fill", "input_background_fill"],
        "panel": [
            "background_fill_primary",
            "block_background_fill",
            "button_secondary_background_fill",
            "panel_background_fill",
        ],
        "line": ["border_color_primary", "block_border_color", "button_secondary_border_color", "input_border_color"],
        "ink": ["body_text_color", "block_title_text_color", "button_secondary_text_color"],
        "muted": ["body_text_color_subdued", "block_label_text_color", "block_info_text_color", "input_placeholder_color"],
        "accent": ["border_color_accent", "input_border_color_focus", "button_primary_background_fill", "slider_color"],
    }
    colours = {
        name + ending: palette[use]
        for use, names in uses.items()
        for name in names
        for ending, palette in (("", LIGHT), ("_dark", DARK))
    }
    found = gr.themes.Base(
        primary_hue="blue",
        neutral_hue="zinc",
        spacing_size="sm",
        radius_size="sm",
        text_size="md",
        font=[gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700)), "system-ui", "sans-serif"],
        font_mono=[gr.themes.LocalFont("IBM Plex Mono", weights=(400,)), "ui-monospace", "monospace"],
    )
    return found.set(
        **colours,
        color_accent="#2f5d9b",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#141517",
        block_shadow="none",
        block_border_width="1px",
        button_border_width="1px",
        button_secondary_background_fill_hover=LIGHT["bg"],
        button_secondary_background_fill_hover_dark=DARK["line"],
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
    )


def navigation(current: str) -> None:
    """The navigation bar of a page."""
    gr.Navbar(visible=False)
    gr.HTML(bar(current), elem_classes="bar", apply_default_css=False, js_on_load="window.cel.restore(element);")


def bar(current: str) -> Markup:
    """What stands in the navigation bar; links keep the search that is open."""
    links = (
        tag(
            "a",
            name,
            href=path,
            css="on" if name == current else "",
            aria_current="page" if name == current else None,
            data_keep_run=path != "/",
        )
        for name, path in PAGES
    )
    worker = tag("span", data_worker=True, role="status")
    switch = tag("button", "Dark", type="button", css="plain", data_theme_switch=True, aria_label="Dark or light")
    return tag("nav", tag("b", TITLE), *links, tag("span", worker, switch, css="r"), aria_label="Pages")


def block(value: str = "", css: str = "", js: str = RESTORE) -> gr.HTML:
    """A piece of a page that the project draws itself."""
    return gr.HTML(value, elem_classes=css or None, apply_default_css=False, js_on_load=js)


def plotted(chart: Any | None) -> PlotData | None:
    """A figure for `gr.Plot`, without the schema's version: Gradio's drawing library is older than Altair, and says so."""
    if chart is None:
        return None
    content = chart.to_dict(validate=False)
    content.pop("$schema", None)
    return PlotData(type="altair", plot=json.dumps(content))


def page_head(title: object, *below: object, actions: object = "") -> Markup:
    """A page's title, one muted line below, and its actions at the right."""
    texts = tag("div", tag("h1", title), tag("div", join(filter(None, below), "  ·  "), css="sub"))
    return tag("div", texts, tag("div", actions, css="actions"), css="head")


def loading(title: str) -> Markup:
    """What stands in a page until its first answer."""
    return join([page_head(title), tag("div", tag("div", tag("i"), css="prog unknown"), css="card wait", aria_busy="true")])


def goto(path: str) -> Markup:
    """What sends the browser to another page as soon as it stands in one."""
    return tag("span", data_goto=path)


def told(event: gr.EventData, name: str) -> str:
    """A word that the browser sent with an event; anything else than text that can be written is as good as nothing."""
    found = event._data.get(name, "") if isinstance(event._data, dict) else ""
    return found if isinstance(found, str) and found.isprintable() else ""


def explained(error: CelError) -> Markup:
    """An error of `cel_core` as a card: its one line says the value, the reason and the remedy."""
    first, remedy = in_two(str(error))
    return notice(first[:1].upper() + first[1:], remedy[:1].upper() + remedy[1:], css="bad")


def in_two(message: str) -> tuple[str, str]:
    """What an error says, and its remedy: after the first colon that stands in no brackets and no quotes."""
    depth, quoted = 0, False
    for place, letter in enumerate(message):
        quoted ^= letter == "'" and (quoted or not message[place - 1 : place].isalnum())
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if not quoted and depth <= 0 and message.startswith(": ", place):
            return message[:place], message[place + 2 :]
    first, _, remedy = message.partition(": ")
    return first, remedy
