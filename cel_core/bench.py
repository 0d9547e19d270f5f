"""Measure the engine beside the plain way, on the same rows, in turn.

The plain way is what a careful user writes by hand: one hooked full forward pass for each head set and batch of 8, one request
per choice, examples of like length together, logits everywhere, every head on every example; for programs the library's own
``generate``. Each comparison runs the engine to its end and lets the plain way keep up with it: whenever it has had less than
half of the engine's time, it takes the next head set, in random order. So both see the same machine. The plain way does the
same work for every head set, so what it took for those it got through is taken to hold for all; how many these were is said.
Every outcome that both made is compared.

Ratios say what is saved; seconds are for this machine. Source of the plain way's batch size: the paper's 8.
"""

import gc
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from random import Random
from threading import Event, Thread
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from cel_core import generation
from cel_core import search as algorithm
from cel_core.ablation import ablate
from cel_core.config import SearchConfig
from cel_core.engine import PackedEngine, PlainEngine
from cel_core.evaluation import PROGRAM_ROWS, Evaluator
from cel_core.experiment import draw, environment, load_checked
from cel_core.heads import INTACT, Head, HeadSet, all_heads
from cel_core.models import Model, geometry_of, read_config
from cel_core.outcomes import Outcomes
from cel_core.prompts import encode
from cel_core.tasks import Example, Task, find_task
from cel_core.tasks.mbpp import MAX_NEW_TOKENS, Mbpp

NEAR_NATS = 1e-4  # a margin this small may fall to either side in float32
PLAIN_BATCH = 8
PLAIN_SHARE = 0.5  # of the engine's time that the plain way gets
PROGRAM_HEADS = 12
SHORTLISTS = (20, 40, 80)
MEMORY_BYTES = 1 << 28
LOOK_S = 0.005


@dataclass(frozen=True)
class Comparison:
    """One piece of a search done both ways; seconds and token-layers of the plain way are for all its head sets."""

    case: str
    intact_accuracy: float | None  # as a fraction; None where nothing is judged
    n_examples: int
    n_sets: int
    n_evaluations: int  # of one example under one head set, that the engine made
    plain_evaluations: int
    n_plain_sets: int  # head sets that the plain way got through
    engine_s: float
    plain_s: float
    engine_token_layers: float | None  # None where tokens are written
    plain_token_layers: float | None
    n_compared: int
    n_differing: int  # outcomes that differ, near ones left out
    n_near: int  # margins below `NEAR_NATS`
    n_near_differing: int

    @property
    def wall(self) -> float:
        """How many times the engine's time the plain way takes."""
        return self.plain_s / self.engine_s

    @property
    def token_layers(self) -> float | None:
        """How many times the engine's token-layers the plain way runs."""
        if self.engine_token_layers is None or self.plain_token_layers is None:
            return None
        return self.plain_token_layers / self.engine_token_layers

    def as_json(self) -> dict[str, Any]:
        """Fields and ratios as plain data."""
        return asdict(self) | {"wall_ratio": self.wall, "token_layer_ratio": self.token_layers}


def run(config: SearchConfig, report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Every comparison of one model on one task.

    Args:
        config: names model, task, rows, how many of them (its discovery examples), p, k, device and dtype.
        report: told what begins.

    Returns:
        What was measured, as plain data: machine, model, task, comparisons, attribution, memory.

    Raises:
        CelError: something the user can mend.
    """
    task, examples = find_task(config.task), draw(config).discovery
    report("loading the model")
    model = load_checked(config)
    found: dict[str, Any] = {
        "model": config.model,
        "task": config.task,
        "kinds": list(config.kinds),
        "n_examples": len(examples),
        "dtype": model.dtype,
        "device": str(model.device),
        "n_threads": torch.get_num_threads(),
        "environment": environment(),
    }
    if isinstance(task, Mbpp):
        report("writing programs")
        return found | {"comparisons": [_programs(model, task, examples).as_json()]}
    comparisons, pool = _scored(model, task, examples, config.p, config.k, report)
    report("attribution")
    found |= {"comparisons": [one.as_json() for one in comparisons], "attribution": _recall(model, task, examples, pool)}
    report("peak memory")
    return found | {"memory": _peak_memory(config, examples)}


def _scored(
    model: Model, task: Task, examples: list[Example], p: int, k: int, report: Callable[[str], None]
) -> tuple[list[Comparison], list[Head]]:
    """A full sweep on the first quarter of the examples, both stages of a bounded search on all; and the pool."""
    heads = all_heads(*model.geometry[:2])
    singles = [HeadSet((head,)) for head in heads]
    report("full sweep")
    sweep = _Sides(model, task, examples[: max(2, len(examples) // 4)], [INTACT, *singles])
    algorithm.screen(heads, p, sweep.least_sure_first(), sweep.outcomes, full=True)
    compared = [sweep.comparison("full sweep")]
    report("stage 1")
    sides = _Sides(model, task, examples, [INTACT, *singles])
    order = sides.least_sure_first()
    ranking = algorithm.screen(heads, p, order, sides.outcomes, full=False)
    compared.append(sides.comparison("stage 1, bounded"))
    report("stage 2")
    joint = _Sides(model, task, examples, algorithm.joint_subsets(ranking, p, k), sides.made[INTACT])
    algorithm.join(ranking, p, k, order, joint.outcomes, full=False)
    compared.append(joint.comparison("stage 2, bounded"))
    return compared, algorithm.pool_of(ranking, p)


class _Sides:
    """The two ways side by side; `outcomes` is the engine's, as Algorithm 1 asks for them."""

    def __init__(
        self,
        model: Model,
        task: Task,
        examples: list[Example],
        head_sets: list[HeadSet],
        intact: "_Made | None" = None,
    ) -> None:
        self.examples, self.head_sets = examples, head_sets
        self.engine = Evaluator(model, task, engine=PackedEngine(model))
        self.plain = Evaluator(model, task, engine=PlainEngine(model, PLAIN_BATCH))
        self.number = {example.key: number for number, example in enumerate(examples)}
        self.made: dict[HeadSet, _Made] = {} if intact is None else {INTACT: intact}
        self.plain_made: dict[HeadSet, _Made] = {}
        self.n_evaluations = 0
        self.waiting = Random(0).sample(self.head_sets, len(self.head_sets))
        for evaluator in (self.engine, self.plain):  # tokens encoded and kernels warm before the clock runs
            for _ in evaluator.outcomes([INTACT], self.examples[:2]):
                pass
        self.engine = Evaluator(model, task, engine=PackedEngine(model))
        for example in self.examples:
            self.engine.requests(example)
            self.plain.requests(example)
        self.by_length = sorted(self.examples, key=self.plain.n_tokens)  # so that the plain way pads little
        self.before = self.plain.engine.work
        self.plain_s = 0.0
        self.began = time.perf_counter()

    def outcomes(self, head_sets: Sequence[HeadSet], numbers: Sequence[int]) -> np.ndarray:
        """Whether each set answers each example right, made by the engine where it is not known."""
        new = [head_set for head_set in head_sets if (self._row(self.made, head_set).correct[list(numbers)] < 0).any()]
        if new:
            for block in self.engine.outcomes(new, [self.examples[number] for number in numbers]):
                self._keep(self.made, block)
                self.n_evaluations += block.correct.size
                self._keep_up()
        return np.stack([self.made[head_set].correct[list(numbers)] for head_set in head_sets]) == 1

    def least_sure_first(self) -> list[int]:
        """The examples by the size of the intact model's margin, as a search takes them."""
        self.outcomes([INTACT], range(len(self.examples)))
        return np.argsort(np.abs(self.made[INTACT].margin_nats), kind="stable").tolist()

    def comparison(self, case: str) -> Comparison:
        """What came of it, once the engine is through."""
        engine_s = time.perf_counter() - self.began - self.plain_s
        n_plain, n_sets = len(self.plain_made), len(self.head_sets)
        pairs = [(self.made[one], theirs) for one, theirs in self.plain_made.items() if one in self.made]
        ours, theirs = (_Made(*map(np.concatenate, zip(*side, strict=True))) for side in zip(*pairs, strict=True))
        both = (ours.correct >= 0) & (theirs.correct >= 0)
        near = both & (np.minimum(np.abs(ours.margin_nats), np.abs(theirs.margin_nats)) < NEAR_NATS)
        differs = both & (ours.correct != theirs.correct)
        return Comparison(
            case=case,
            intact_accuracy=float(self.made[INTACT].correct.mean()),
            n_examples=len(self.examples),
            n_sets=n_sets,
            n_evaluations=self.n_evaluations,
            plain_evaluations=n_sets * len(self.examples),
            n_plain_sets=n_plain,
            engine_s=engine_s,
            plain_s=self.plain_s / n_plain * n_sets,
            engine_token_layers=self.engine.engine.work.token_layers,
            plain_token_layers=(self.plain.engine.work.token_layers - self.before.token_layers) / n_plain * n_sets,
            n_compared=int(both.sum()),
            n_differing=int((differs & ~near).sum()),
            n_near=int(near.sum()),
            n_near_differing=int((differs & near).sum()),
        )

    def _keep_up(self) -> None:
        while self.waiting and self.plain_s < PLAIN_SHARE * (time.perf_counter() - self.began - self.plain_s):
            began = time.perf_counter()
            for block in self.plain.outcomes([self.waiting.pop()], self.by_length):
                self._keep(self.plain_made, block)
            self.plain_s += time.perf_counter() - began

    def _row(self, made: "dict[HeadSet, _Made]", head_set: HeadSet) -> "_Made":
        if head_set not in made:
            made[head_set] = _Made(np.full(len(self.examples), -1, np.int8), np.full(len(self.examples), np.nan))
        return made[head_set]

    def _keep(self, made: "dict[HeadSet, _Made]", block: Outcomes) -> None:
        numbers = [self.number[key] for key in block.examples]
        for head_set, correct, margins in zip(block.head_sets, block.correct, block.margin_nats, strict=True):
            row = self._row(made, head_set)
            row.correct[numbers], row.margin_nats[numbers] = correct, margins


class _Made(NamedTuple):
    """Outcomes of one head set, each ``(n_examples,)``."""

    correct: np.ndarray  # 1 right, 0 wrong, -1 not made
    margin_nats: np.ndarray


def _programs(model: Model, task: Mbpp, examples: Sequence[Example]) -> Comparison:
    """Compare both ways of writing programs, without one head of each of 12 layers; no program is run.

    Args:
        model: the model.
        task: the task.
        examples: the tasks to write for.
    """
    n_layers, n_heads = model.geometry[:2]
    layers = np.linspace(0, n_layers - 1, PROGRAM_HEADS).round().astype(int)
    head_sets = [HeadSet.parse(f"L{layer}H{number % n_heads}") for number, layer in enumerate(layers)]
    evaluator = Evaluator(model, task, allow_code_execution=True, engine=PlainEngine(model))
    prompts = [generation.Prompt(encode(model.tokenizer, evaluator.rendered(example)), task.stop) for example in examples]
    ours: dict[HeadSet, list[str]] = {}
    theirs: dict[HeadSet, list[str]] = {}
    waiting = Random(0).sample(head_sets, len(head_sets))
    engine_s = plain_s = 0.0
    n_sets = max(1, PROGRAM_ROWS // len(prompts))
    for chunk in (head_sets[i : i + n_sets] for i in range(0, len(head_sets), n_sets)):
        began = time.perf_counter()
        answers = generation.write(model, chunk, prompts, MAX_NEW_TOKENS)
        engine_s += time.perf_counter() - began
        ours |= {s: [task.program(generation.decode(model, a)) for a in row] for s, row in zip(chunk, answers, strict=True)}
        while waiting and plain_s < PLAIN_SHARE * engine_s:
            head_set = waiting.pop()
            began = time.perf_counter()
            texts = _write_plainly(model, head_set, prompts)
            plain_s += time.perf_counter() - began
            theirs[head_set] = [task.program(text) for text in texts]
    differing = sum(a != b for s in theirs for a, b in zip(ours[s], theirs[s], strict=True))
    return Comparison(
        case=f"{PROGRAM_HEADS} heads",
        intact_accuracy=None,
        n_examples=len(examples),
        n_sets=len(head_sets),
        n_evaluations=len(head_sets) * len(examples),
        plain_evaluations=len(head_sets) * len(examples),
        n_plain_sets=len(theirs),
        engine_s=engine_s,
        plain_s=plain_s / len(theirs) * len(head_sets),
        engine_token_layers=None,
        plain_token_layers=None,
        n_compared=len(theirs) * len(examples),
        n_differing=differing,
        n_near=0,
        n_near_differing=0,
    )


def _write_plainly(model: Model, head_set: HeadSet, prompts: Sequence[generation.Prompt]) -> list[str]:
    """Answers as the library writes them: left-padded batches, each until its last row is done."""
    texts: list[str] = []
    for first in range(0, len(prompts), PLAIN_BATCH):
        batch = prompts[first : first + PLAIN_BATCH]
        width = max(len(prompt.tokens) for prompt in batch)
        gaps = [width - len(prompt.tokens) for prompt in batch]
        tokens = torch.tensor([[0] * gap + list(prompt.tokens) for gap, prompt in zip(gaps, batch, strict=True)])
        mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps])
        with torch.inference_mode(), ablate(model, head_set):
            written = model.causal_lm.generate(
                input_ids=tokens.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
                stop_strings=[prompt.stop for prompt in batch][:1],
                tokenizer=model.tokenizer,
            )
        texts += model.tokenizer.batch_decode(written[:, width:], skip_special_tokens=True)
    return texts


def _recall(model: Model, task: Task, examples: Sequence[Example], pool: Sequence[Head]) -> dict[str, Any]:
    """How much of the exact pool the heads hold that attribution promises most of, by their number.

    Args:
        model: the model.
        task: the task, scored by log-probabilities.
        examples: the discovery examples.
        pool: the exact pool on them.

    Returns:
        attribution_s; token_layers; recall, from the length of the shortlist to a fraction of the pool.
    """
    evaluator = Evaluator(model, task)
    before, began = evaluator.engine.work, time.perf_counter()
    order = evaluator.promising(examples)
    return {
        "attribution_s": time.perf_counter() - began,
        "token_layers": evaluator.engine.work.token_layers - before.token_layers,
        "recall": {m: len(set(order[:m]) & set(pool)) / len(pool) for m in SHORTLISTS if m < len(order)},
    }


def _peak_memory(config: SearchConfig, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Memory above the loaded model's own at the height of a sweep, by the engine and the plain way, each in its own process.

    The engine sweeps heads of the last layers: on half of the examples, on all of them, and twice as many heads. It keeps
    intact runs within `MEMORY_BYTES` here, so that what is kept does not hide what a sweep needs.

    Args:
        config: names model, task, device and dtype.
        examples: the examples.

    Returns:
        One row a sweep: way, n_sets, n_examples, bytes.
    """
    n_sets = max(1, geometry_of(read_config(config.model)[0]).n_total_heads // 8)
    half = list(examples[: max(1, len(examples) // 2)])
    cases = [("engine", n_sets, half), ("engine", n_sets, examples), ("engine", 2 * n_sets, examples), ("plain", 1, examples)]
    rows = []
    for way, count, asked in cases:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            n_bytes = process.submit(_peak_bytes, config, way, count, list(asked)).result()
        rows.append({"way": way, "n_sets": count, "n_examples": len(asked), "bytes": n_bytes})
    return rows


def _peak_bytes(config: SearchConfig, way: str, n_sets: int, examples: list[Example]) -> int:
    model = load_checked(config)
    engine = PackedEngine(model, memory_bytes=MEMORY_BYTES) if way == "engine" else PlainEngine(model, PLAIN_BATCH)
    evaluator = Evaluator(model, find_task(config.task), engine=engine)
    singles = [HeadSet((head,)) for head in all_heads(*model.geometry[:2])]
    with _Peak(model.device) as peak:
        for _ in evaluator.outcomes(singles[-n_sets:], examples):
            pass
    return peak.n_bytes


class _Peak:
    """The most memory held inside the context above what was held at its start; on a CPU looked at every few milliseconds."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.n_bytes, self._before = device, 0, 0
        self._done = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Peak":
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)
        else:
            self._before = psutil.Process().memory_info().rss
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.type == "cuda":
            self.n_bytes = torch.cuda.max_memory_allocated(self.device) - self._before
        else:
            self._done.set()
            self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._done.wait(LOOK_S):
            self.n_bytes = max(self.n_bytes, process.memory_info().rss - self._before)
