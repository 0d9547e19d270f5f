"""The toy page's controls: one form in HTML of the project's own. The browser puts each change in the address (toy.js)."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cel_core.toy import PHASE_SETTINGS, ToyConfig
from pages.markup import Markup, join, tag
from pages.toy_figures import N_COLOURS, colour
from pages.toy_question import MEASURES, USUAL_SEED, USUAL_VALUES

SCRIPT = Path(__file__).with_name("toy.js").read_text()


class Slider(NamedTuple):
    """A number with a slider; the box beside it takes any value that the model accepts."""

    name: str
    low: float
    high: float
    step: float
    usual: float
    hint: str


SLIDERS = (
    Slider("a", 0.1, 4, 0.1, 2, "What task B wants of the shared feature; task A wants 0"),
    Slider("b", 0.1, 4, 0.1, 1, "What task A wants of its own feature"),
    Slider("c", 0.1, 4, 0.1, 1, "What task B wants of its own feature"),
    Slider("alpha", 0.02, 0.5, 0.01, 0.1, "Standard deviation of every scalar at the start"),
    Slider("eta", 0.01, 0.5, 0.01, 0.05, "Step of gradient descent"),
    Slider("heads", 1, N_COLOURS, 1, 3, "Number of heads, M"),
    Slider("seed", 0, 999, 1, USUAL_SEED, "Seed of the run shown"),
)
BEYOND_NUMBERS = (
    ("batch", "sampled batches, size", "0", "Examples of each task per step; 0 is the whole population"),
    ("noise", "label noise", "0", "Standard deviation on the sampled targets; needs sampled batches"),
    ("decay", "weight decay", "0", "Each step shrinks every scalar by eta times this"),
    ("init", "larger initialisation, times", "1", "Multiplies the start, and leaves the checkpoint of alpha"),
    ("weight", "task A's weight", "0.5", "Share of the objective; the other tasks share the rest"),
    ("tasks", "tasks", "2", "2 is A and B; up to 8"),
)
BEYOND_SWITCHES = (("dense", "dense projections"), ("encoding", "learnt feature encodings"), ("adam", "Adam"))
SETTING_NAMES = {
    "heads": "heads M",
    "init_scale": "initialisation, times",
    "label_noise": "label noise",
    "weight_decay": "weight decay",
    "batch_size": "batch size",
    "n_tasks": "tasks",
    "weight_a": "task A's weight",
}


def form(query: Mapping[str, str]) -> Markup:
    """The card at the left, filled with what the address asks, even where that is wrong."""
    run = tag("button", "Run", type="button", css="btn primary", data_act="run")
    seed = tag("button", "New seed", type="button", css="btn", data_new_seed=True)
    training = tag("div", *_training(query), css="fields")
    return tag(
        "form",
        tag("div", *(part for slider in SLIDERS for part in _slider(slider, query)), css="sliders"),
        tag("div", run, seed, css="buttons"),
        training,
        _beyond(query),
        css="card toyform",
        data_toy=True,
        autocomplete="off",
    )


def legend(config: ToyConfig) -> Markup:
    """The heads' colours."""
    chips = (
        tag("span", tag("i", style=f"background:{colour(head)}"), f"head {head}", css="headkey") for head in range(config.heads)
    )
    return tag("div", *chips, css="headkeys")


def segments(name: str, choices: Mapping[str, str], chosen: str) -> Markup:
    """Buttons of which one is pressed; each sets the address's `name`."""
    buttons = (
        tag("button", text, type="button", data_set=name, data_value=key, aria_pressed="true" if key == chosen else "false")
        for key, text in choices.items()
    )
    return tag("span", *buttons, css="segments")


def select(name: str, choices: Mapping[str, str], chosen: str, label: str) -> Markup:
    """A drop-down list that sets the address's `name`."""
    options = (tag("option", text, value=key, selected=key == chosen) for key, text in choices.items())
    return tag("select", *options, data_field=name, aria_label=label)


def population_form(query: Mapping[str, str]) -> Markup:
    """How many seeds the population has."""
    chosen = query.get("seeds", "") or "4000"
    sizes = {str(n): f"{n:,}" for n in (1000, 4000, 20_000)}
    choices = sizes if chosen in sizes else {chosen[:12]: chosen[:12], **sizes}
    shown = {key: f"{text} seeds" for key, text in choices.items()}
    return tag("form", select("seeds", shown, chosen, "Number of seeds"), css="sizeform", data_toy=True)


def map_form(query: Mapping[str, str]) -> Markup:
    """The phase map's two settings and their values."""
    settings = {name: SETTING_NAMES.get(name, name) for name in PHASE_SETTINGS}
    parts: list[Markup] = []
    for name, label, usual in (("x", "across", "alpha"), ("y", "up", "heads")):
        setting = query.get(name, "") or usual
        values = query.get(f"{name}s", "") or USUAL_VALUES.get(setting, "")
        parts += [
            tag("label", label, select(name, settings, setting, f"Setting {label}")),
            _box(f"{name}s", values, f"Values {label}, separated by commas", "values"),
        ]
    runs = tag("label", "runs a cell", _box("n", query.get("n", "") or "200", "Runs in each cell", "short"))
    return tag("form", *parts, runs, css="mapform", data_toy=True, data_usual=_usual_json(), autocomplete="off")


def measures(chosen: str) -> Markup:
    """What the map's colour says."""
    short = {"beneficial": "Worth removing", "gain": "Gain", "event": "On E", "converged": "Converged"}
    return segments("show", {key: short[key] for key in MEASURES}, chosen)


def _usual_json() -> str:
    pairs = ",".join(f'"{name}":"{values}"' for name, values in USUAL_VALUES.items())
    return "{" + pairs + "}"


def _slider(slider: Slider, query: Mapping[str, str]) -> tuple[Markup, ...]:
    text = str(query.get(slider.name, "")).strip()[:20]
    try:
        number = float(text) if text else slider.usual
    except ValueError:
        number = slider.usual
    shown = text or f"{slider.usual:g}"
    high = max(slider.high, number) if number < 1e9 else slider.high
    ends = {"min": slider.low, "max": f"{high:g}", "step": slider.step}
    return (
        tag("label", slider.name, title=slider.hint, **{"for": f"toy-{slider.name}"}),
        tag("input", type="range", value=f"{number:g}", data_for=slider.name, aria_label=f"{slider.name}, slider", **ends),
        _box(slider.name, shown, slider.hint, "number", f"toy-{slider.name}"),
    )


def _box(name: str, shown: str, hint: str, css: str = "", element: str = "") -> Markup:
    mode = "text" if css == "values" else "decimal"
    return tag(
        "input", type="text", inputmode=mode, data_field=name, value=shown, css=css, title=hint, aria_label=hint,
        id=element or None, spellcheck="false",
    )  # fmt: skip


def _training(query: Mapping[str, str]) -> list[Markup]:
    steps, method = query.get("steps", "") or "twice", query.get("method", "") or "descent"
    words = {"twice": "to twice the checkpoint", "checkpoint": "to the checkpoint", "converged": "until converged"}
    choices = words if steps in words else {steps[:12]: f"{steps[:12]} steps", **words}
    methods = {"descent": "gradient descent", "flow": "gradient flow (limit of small steps)"}
    return [
        tag("label", "run", select("steps", choices, steps, "Length of the run")),
        tag("label", "by", select("method", methods, method, "Method")),
    ]


def _beyond(query: Mapping[str, str]) -> Markup:
    n_on = sum(bool(query.get(name)) for name, _ in BEYOND_SWITCHES)
    n_on += sum(query.get(name, usual) not in (usual, "") for name, _, usual, _ in BEYOND_NUMBERS)
    switches = (
        tag(
            "label",
            tag("input", type="checkbox", data_field=name, value="1", checked=bool(query.get(name))),
            text,
            css="switch",
        )
        for name, text in BEYOND_SWITCHES
    )
    numbers = (
        tag("label", text, _box(name, query.get(name, "")[:12] or usual, hint, "short"))
        for name, text, usual, hint in BEYOND_NUMBERS
    )
    state = tag("span", "off" if not n_on else f"{n_on} on", data_beyond=True)
    note = tag("p", "None of these is covered by a proof.", css="sub")
    return tag(
        "details",
        tag("summary", join(["Beyond the theorems (", state, ")"])),
        note,
        tag("div", *switches, *numbers, css="beyondfields"),
        css="beyond",
        open=n_on > 0,
    )
