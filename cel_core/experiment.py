"""Run one search from plan to held-out result, so that it can be stopped anywhere and go on from what is stored.

1. Read the rows, draw the two sides, load the model: everything a user can mend is said before any evaluation.
2. Algorithm 1 on the discovery side; each outcome it asks for comes from the store or is evaluated and stored.
3. Freeze the best set. Only now does the store answer for the held-out side.
4. Evaluate intact model and frozen set on the held-out side, and keep the comparison.
"""

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

from cel_core import search as algorithm
from cel_core.ablation import verify_heads
from cel_core.config import SearchConfig
from cel_core.errors import CelError, ConfigError
from cel_core.evaluation import Evaluator, require_code_execution, require_margins, template_note
from cel_core.heads import INTACT, HeadSet, all_heads
from cel_core.models import Model, geometry_of, load_model, read_config
from cel_core.outcomes import Outcomes, as_table
from cel_core.records import Part, SearchRecord, Status
from cel_core.store import Store
from cel_core.tasks import Example, find_task
from cel_core.tasks.rows import read_examples
from cel_core.tasks.split import Split, split_examples

FLUSH_S = 2.0  # outcomes are written at least this often, so that little is lost when the process is killed


class Progress(NamedTuple):
    """How far a stage is, in evaluations (one example under one head set)."""

    search: str
    stage: str
    done: int
    total: int


class Stopped(Exception):
    """Raised inside a search whose user asked it to stop; nothing evaluated so far is lost."""


Report = Callable[[Progress], None]  # called after every batch; may raise Stopped
Load = Callable[[SearchConfig], Model]


def load_checked(config: SearchConfig) -> Model:
    """The model of a search, its heads located and checked."""
    model = load_model(config.model, config.device, config.dtype)
    verify_heads(model)
    return model


def start(config: SearchConfig, store: Store, report: Report, load: Load = load_checked) -> SearchRecord:
    """Run a new search to its end.

    Raises:
        CelError: something the user can mend; the search, if it was begun, is marked failed with the reason.
    """
    split = draw(config)
    search = store.create_search(config, environment())
    return _run(store.search(search), store, report, load, split)


def resume(search: str, store: Store, report: Report, load: Load = load_checked) -> SearchRecord:
    """Begin a queued search, or go on with a stopped, interrupted or failed one from what is stored.

    Raises:
        CelError: something the user can mend.
    """
    record = store.claim(search, environment())
    return _run(record, store, report, load, None)


def environment() -> dict[str, str]:
    """What the search ran on, for whoever repeats it."""
    packages = ("torch", "transformers", "datasets", "tokenizers", "duckdb")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in packages},
    }


def draw(config: SearchConfig) -> Split:
    """The two sides of a search, and everything about it that can be checked before the weights are read."""
    task = find_task(config.task)
    require_code_execution(task, config.allow_code_execution)
    if config.shortlist is not None:
        require_margins(task)
    n_heads = geometry_of(read_config(config.model)[0]).n_total_heads
    if config.p > n_heads:
        raise ConfigError(f"p = {config.p}: the model has only {n_heads} heads; give --p {n_heads} or less")
    examples = read_examples(task, config.data, config.seed, config.kinds)
    split = split_examples(task, examples, config.n_discovery, config.n_held_out, config.seed)
    note = template_note(task, config.chat_template)
    return replace(split, notes=[*split.notes, note]) if note else split


def _run(record: SearchRecord, store: Store, report: Report, load: Load, split: Split | None) -> SearchRecord:
    """Run a claimed search, and mark how it ended whatever happens."""
    clock = _Clock(record.duration_s)
    try:
        report(Progress(record.id, "loading", 0, 0))
        if split is None and not record.n_discovery:
            split = draw(record.config)
        _search(record, store, report, load, split, clock)
    except (Stopped, KeyboardInterrupt):
        store.end(record.id, Status.STOPPED, clock.seconds())
        raise
    except CelError as error:
        store.end(record.id, Status.FAILED, clock.seconds(), str(error))
        raise
    except Exception as error:
        store.end(record.id, Status.FAILED, clock.seconds(), f"{type(error).__name__}: {error}"[:500])
        raise
    store.end(record.id, Status.DONE, clock.seconds())
    return store.search(record.id)


def _search(record: SearchRecord, store: Store, report: Report, load: Load, split: Split | None, clock: "_Clock") -> None:
    config = record.config
    model = load(config)
    evaluator = Evaluator(model, find_task(config.task), config.chat_template, config.allow_code_execution)
    shown = dict(zip(("n_layers", "n_heads", "n_kv_heads"), model.geometry[:3], strict=True))
    shown |= {"spec": config.model, "family": model.family, "dtype": model.dtype, "device": str(model.device)}
    store.plan(record.id, evaluator.protocol, shown, split or Split([], [], []))
    heads = all_heads(model.geometry.n_layers, model.geometry.n_heads)

    discovery = _StoredOutcomes(record.id, Part.DISCOVERY, evaluator, store, report, clock)
    n_discovery = len(discovery.examples)
    if config.shortlist is not None:
        discovery.begin("attribution", n_discovery)
        heads = evaluator.promising(discovery.examples, discovery.count)[: config.shortlist]
    discovery.begin("stage 1 of 2", (len(heads) + 1) * n_discovery)
    examples = discovery.least_sure_first()
    singles = algorithm.screen(heads, config.p, examples, discovery, config.full_sweep, discovery.skip)
    discovery.flush()
    store.save_ranking(record.id, 1, singles)
    joint = algorithm.n_subsets(config.p, config.k) - config.p
    discovery.begin("stage 2 of 2", (1 + joint) * n_discovery)
    subsets = algorithm.join(singles, config.p, config.k, examples, discovery, config.full_sweep, discovery.skip)
    discovery.flush()
    store.save_ranking(record.id, 2, subsets)

    frozen = subsets[0]
    store.freeze(record.id, frozen.head_set, frozen.gain)
    held_out = _StoredOutcomes(record.id, Part.HELD_OUT, evaluator, store, report, clock)
    held_out.begin("held-out", 2 * len(held_out.examples))
    held_out([INTACT, frozen.head_set], range(len(held_out.examples)))
    held_out.flush()
    n_sets = 1 + model.geometry.n_total_heads + joint
    n_tokens = [sum(map(evaluator.n_tokens, side.examples)) for side in (discovery, held_out)]
    plain = model.geometry.n_layers * (n_sets * n_tokens[0] + 2 * n_tokens[1])
    store.save_held_out(record.id, plain or None)


class _Clock:
    """Seconds worked on a search, over all its runs."""

    def __init__(self, before_s: float) -> None:
        self._before_s = before_s
        self._started = time.monotonic()

    def seconds(self) -> float:
        return self._before_s + time.monotonic() - self._started


class _StoredOutcomes:
    """Algorithm 1's callable over one side of a search: known outcomes come from the store, the others are made and kept."""

    def __init__(self, search: str, part: Part, evaluator: Evaluator, store: Store, report: Report, clock: _Clock) -> None:
        self.search, self.part, self.evaluator, self.store, self.report, self.clock = (
            search,
            part,
            evaluator,
            store,
            report,
            clock,
        )
        self.examples: list[Example] = store.examples(search, part)
        self._number = {example.key: number for number, example in enumerate(self.examples)}
        self._correct: dict[HeadSet, np.ndarray] = {}  # (n_examples,) 1 right, 0 wrong, -1 not known
        for head_set, (positions, correct) in store.known(search, part).items():
            self._row(head_set)[positions] = correct
        self._unsaved: list[Outcomes] = []
        self._saved_at = time.monotonic()
        self._stage, self._done, self._total = "", 0, 0
        self._told = (0, 0)  # done and total as the store has them
        self._billed = evaluator.engine.work.token_layers

    def begin(self, stage: str, total: int) -> None:
        """Name the stage that the next evaluations belong to, and how many there are in all, known ones included."""
        self._stage, self._done, self._total, self._told = stage, 0, total, (0, total)
        self.store.progress(self.search, stage, 0, total, self.clock.seconds())
        self._report()

    def __call__(self, head_sets: Sequence[HeadSet], examples: Sequence[int]) -> np.ndarray:
        """Whether each set answers each example right, ``(n_sets, n_examples)``."""
        missing: dict[tuple[int, ...], list[HeadSet]] = defaultdict(list)
        for head_set in head_sets:
            row = self._row(head_set)
            missing[tuple(number for number in examples if row[number] < 0)].append(head_set)
        self._done += sum((len(examples) - len(numbers)) * len(sets) for numbers, sets in missing.items())
        for numbers, sets in missing.items():
            if not numbers:
                continue
            try:
                for made in self.evaluator.outcomes(sets, [self.examples[number] for number in numbers]):
                    self._keep(made)
            finally:
                self.flush()  # also when the user stops the search here
        self._report()
        return np.stack([self._row(head_set)[list(examples)] for head_set in head_sets]) == 1

    def least_sure_first(self) -> list[int]:
        """The examples by the size of the intact model's margin: those whose answers are likeliest to change first."""
        self([INTACT], range(len(self.examples)))
        self._done = 0  # Algorithm 1 asks for the intact model too: it is counted then
        margins = self.store.paired(self.search, self.part, INTACT)["intact_margin_nats"].abs()
        return np.argsort(margins.to_numpy(), kind="stable").tolist()  # programs have none (NaN) and keep their order

    def count(self, done: int) -> None:
        """Note how far a stage is that makes no outcomes."""
        self._done = done
        self._report()

    def skip(self, n_evaluations: int) -> None:
        """Evaluations of this stage turned out not to be needed."""
        self._total -= n_evaluations

    def flush(self) -> None:
        """Write what is not stored yet: outcomes, and how far the stage is."""
        if self._unsaved:
            self.store.add_outcomes(self.search, self.part, as_table(self._unsaved))
            self._unsaved = []
        if (self._done, self._total) != self._told:
            ran = self.evaluator.engine.work.token_layers
            self.store.progress(self.search, self._stage, self._done, self._total, self.clock.seconds(), ran - self._billed)
            self._billed, self._told = ran, (self._done, self._total)
        self._saved_at = time.monotonic()

    def _report(self) -> None:
        """Say how far the stage is; whoever listens may stop the search here."""
        try:
            if time.monotonic() - self._saved_at > FLUSH_S:
                self.flush()
            self.report(Progress(self.search, self._stage, self._done, self._total))
        except BaseException:
            self.flush()
            raise

    def _row(self, head_set: HeadSet) -> np.ndarray:
        if head_set not in self._correct:
            self._correct[head_set] = np.full(len(self.examples), -1, dtype=np.int8)
        return self._correct[head_set]

    def _keep(self, made: Outcomes) -> None:
        numbers = [self._number[key] for key in made.examples]
        for head_set, correct in zip(made.head_sets, made.correct, strict=True):
            self._row(head_set)[numbers] = correct
        self._unsaved.append(made)
        self._done += made.correct.size
        self._report()
