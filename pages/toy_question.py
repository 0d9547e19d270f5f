"""What the toy page's address asks: a model, its training, and how to look at it.

The address is the page's only state: the browser changes it and sends it whole, the server reads it and keeps nothing. Names
that are left out mean the usual value; names that are not the toy page's are ignored.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from cel_core.errors import ToyError
from cel_core.toy import MAX_STEPS, PHASE_SETTINGS, Axis, Beyond, Method, ToyConfig

NUMBERS = ("a", "b", "c", "alpha", "eta")
WHOLE = ("heads", "seed")
SWITCHES = {"dense": "dense", "encoding": "learnt_encoding"}  # address name -> field of `Beyond`
BEYOND_NUMBERS = {"noise": "label_noise", "decay": "weight_decay", "init": "init_scale"}
BEYOND_WHOLE = {"batch": "batch_size", "tasks": "n_tasks"}
USUAL_SEED = 3  # a run on E, so that the first view shows what the page is about
MAX_PAGE_SEEDS = 100_000
MAX_CELLS = 144
MAX_CELL_SEEDS = 5_000
MEASURES = {
    "beneficial": "share of runs with a head worth removing",
    "gain": "median gain of removing it",
    "event": "share of runs on E",
    "converged": "share of converged runs",
}
USUAL_VALUES: dict[str, str] = {
    "alpha": "0.05,0.1,0.2,0.3,0.5,0.7",
    "eta": "0.02,0.05,0.1,0.2,0.4",
    "heads": "2,3,4,6,8",
    "a": "0.5,1,2,3,4",
    "b": "0.5,1,2,3,4",
    "c": "0.5,1,2,3,4",
    "init_scale": "1,2,4,8",
    "label_noise": "0,0.5,1,2",
    "weight_decay": "0,0.001,0.01,0.03",
    "batch_size": "4,16,64,256",
    "n_tasks": "2,3,4,5",
    "weight_a": "0.1,0.3,0.5,0.7,0.9",
}
MEASURED_NS = 22.0  # a step of one head and feature in a block of seeds, on one core
MEASURED_STEP_S = 22e-6  # a step of any block
SLOWER = {"dense": 9.0, "learnt_encoding": 9.0, "adam": 5.0, "batch_size": 4.0}  # measured, roughly


@dataclass(frozen=True)
class Question:
    """One view of the toy page, checked on construction by `read`."""

    query: Mapping[str, str]  # as asked, for links that ask the same
    config: ToyConfig
    population: ToyConfig  # seeds from 0, whichever run is shown; to the checkpoint unless asked otherwise
    method: Method
    logarithmic: bool
    deleted: int | None  # None: the conflict feature's winner
    intact: bool  # no head is deleted
    n_seeds: int
    x: Axis
    y: Axis
    measure: str
    n_cell_seeds: int

    @property
    def settled(self) -> ToyConfig:
        """The population's configuration, trained until it converges where it ever does: scaling is about the limit."""
        return replace(self.population, steps="checkpoint" if self.config.beyond.never_settles else "converged")

    @property
    def mapped(self) -> ToyConfig:
        """The configuration of the phase map everywhere but on its axes."""
        restless = {"batch_size", "weight_decay", "label_noise"} & {self.x.setting, self.y.setting}
        return replace(self.settled, steps="checkpoint") if restless else self.settled


def read(query: Mapping[str, str]) -> Question:
    """The question that an address asks.

    Raises:
        ToyError: a value is no number, out of its range, or does not go with another.
    """
    usual = ToyConfig(seed=USUAL_SEED)
    values: dict[str, Any] = {name: _number(query, name, getattr(usual, name)) for name in NUMBERS}
    values |= {name: _whole(query, name, getattr(usual, name)) for name in WHOLE}
    steps: Any = _text(query, "steps", "twice")
    if steps not in ("twice", "checkpoint", "converged"):
        steps = _whole(query, "steps", 1)
    config = ToyConfig(**values, steps="checkpoint" if steps == "twice" else steps, beyond=_beyond(query))
    population = replace(config, seed=0)
    if steps == "twice":
        config = replace(config, steps=min(MAX_STEPS, 2 * config.checkpoint))
    method = _text(query, "method", "descent")
    if method not in get_args(Method):
        raise ToyError(f"method '{method}' is unknown: choose descent or flow")
    deleted = _text(query, "deleted", "winner")
    x, y = _axis(query, "x", "alpha"), _axis(query, "y", "heads")
    if len(x.values) * len(y.values) > MAX_CELLS:
        raise ToyError(f"{len(x.values)} x {len(y.values)} cells are more than {MAX_CELLS}: give fewer values")
    measure = _text(query, "show", "beneficial")
    if measure not in MEASURES:
        raise ToyError(f"show '{measure}' is nothing that the map measures: choose one of {', '.join(MEASURES)}")
    return Question(
        query=dict(query),
        config=config,
        population=population,
        method=method,  # type: ignore[arg-type]
        logarithmic=_text(query, "scale", "linear") == "log",
        deleted=_head(query, config) if deleted not in ("winner", "none") else None,
        intact=deleted == "none",
        n_seeds=_between("seeds", _whole(query, "seeds", 4000), 1, MAX_PAGE_SEEDS),
        x=x,
        y=y,
        measure=measure,
        n_cell_seeds=_between("n", _whole(query, "n", 200), 1, MAX_CELL_SEEDS),
    )


def cost_s(config: ToyConfig, n_seeds: int = 1) -> float:
    """Roughly how long training takes here, in seconds; with steps "converged" runs usually end by twice the checkpoint."""
    steps = min(config.last_step, 2 * config.checkpoint) if config.steps == "converged" else config.last_step
    beyond = config.beyond
    slower = max([1.0, *(by for name, by in SLOWER.items() if getattr(beyond, name, False))])
    slower = max(slower, SLOWER["adam"]) if beyond.optimizer == "adam" else slower
    blocks = math.ceil(n_seeds / 1000)
    return steps * slower * (blocks * MEASURED_STEP_S + n_seeds * config.heads * config.n_features * MEASURED_NS * 1e-9)


def _beyond(query: Mapping[str, str]) -> Beyond:
    values: dict[str, Any] = {field: bool(_text(query, name, "")) for name, field in SWITCHES.items()}
    usual = Beyond()
    values |= {field: _number(query, name, getattr(usual, field)) for name, field in BEYOND_NUMBERS.items()}
    values |= {field: _whole(query, name, getattr(usual, field)) for name, field in BEYOND_WHOLE.items()}
    if _text(query, "adam", ""):
        values["optimizer"] = "adam"
    if _text(query, "weight", ""):
        share = _number(query, "weight", 0.5)
        if not 0 < share < 1:
            raise ToyError(f"weight {share:g} is no share of task A between 0 and 1: 0.5 is the theorems' case")
        n_others = max(1, min(values["n_tasks"], 64) - 1)
        values["task_weights"] = (share, *[(1 - share) / n_others] * n_others)
    return Beyond(**values)


def _axis(query: Mapping[str, str], name: str, usual: str) -> Axis:
    setting = _text(query, name, usual)
    if setting not in PHASE_SETTINGS:
        raise ToyError(f"'{setting}' is no setting to map: choose among {', '.join(PHASE_SETTINGS)}")
    words = [word.strip() for word in _text(query, f"{name}s", USUAL_VALUES[setting], longest=400).split(",")]
    values = tuple(dict.fromkeys(_parse(f"{setting} on the map", word) for word in words if word))
    if not all(map(math.isfinite, values)):
        raise ToyError(f"{setting} on the map has a value that is not finite: write numbers such as {USUAL_VALUES[setting]}")
    return Axis(setting, values)


def _head(query: Mapping[str, str], config: ToyConfig) -> int:
    head = _whole(query, "deleted", 0)
    if not 0 <= head < config.heads:
        raise ToyError(f"head {head} is not in this model: heads go from 0 to {config.heads - 1}")
    return head


def _text(query: Mapping[str, str], name: str, usual: str, longest: int = 40) -> str:
    return str(query.get(name, "")).strip()[:longest] or usual


def _number(query: Mapping[str, str], name: str, usual: float) -> float:
    text = _text(query, name, "")
    return _parse(name, text) if text else usual


def _parse(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ToyError(f"{name} '{text}' is not a number: write one such as 0.1") from None


def _whole(query: Mapping[str, str], name: str, usual: int) -> int:
    text = _text(query, name, "")
    try:
        return int(text) if text else usual
    except ValueError:
        raise ToyError(f"{name} '{text}' is not a whole number: write one such as {usual}") from None


def _between(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ToyError(f"{name} {value} is not between {low:,} and {high:,}: choose one that is")
    return value
