"""The command line: search, sweep, evaluate, show, export, import, bench, and the toy model.

Progress goes to standard error, results to standard output; ``--json`` prints one object. The exit status is 0 when done, 2
with a one-line reason and remedy when the user can mend what is wrong, 130 when interrupted.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tqdm import tqdm

from cel_core import bench, bundle, bundle_reading, experiment, printing
from cel_core import search as algorithm
from cel_core.config import DEMO, SearchConfig, is_demo
from cel_core.errors import CelError, ConfigError
from cel_core.evaluation import Evaluator, require_code_execution, template_note
from cel_core.heads import HeadSet, all_heads
from cel_core.outcomes import as_table
from cel_core.paths import typed_path
from cel_core.records import Status
from cel_core.store import DEFAULT_PATH, Store
from cel_core.tasks import TASKS, Example, Scoring, Task, find_task
from cel_core.tasks.rows import read_examples
from cel_core.toy import command as toy_command

SHORTLIST = 50

EXAMPLES = """examples:
  python -m cel_core search --model demo --task carry
  python -m cel_core search --model Qwen/Qwen2.5-3B-Instruct --task arithmetic --discovery 2000 --held-out 1000
  python -m cel_core search --resume 7f3a2c
  python -m cel_core sweep --model ./smollm2 --task boolq --data ./rows --limit 100 --json
  python -m cel_core evaluate --model demo --task carry --heads L1H3,L2H6 --outcomes outcomes.jsonl
  python -m cel_core show 7f3a2c
  python -m cel_core export 7f3a2c --out search.zip
  python -m cel_core import search.zip
  python -m cel_core bench --model demo --task carry --rows 200
  python -m cel_core toy --alpha 0.1 --eta 0.05 --seeds 4000
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    try:
        chosen.run(chosen)
    except CelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; a search keeps what it has evaluated", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, as in `show | head`
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cel_core",
        description="Which few attention heads, once removed, make this model better at this task?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    search = commands.add_parser("search", help="screen every head, join the best, freeze one set, test it held-out")
    search.set_defaults(run=_search)
    _model_options(search)
    search.add_argument("--discovery", type=int, metavar="N", help="examples to screen on (default: the paper's number)")
    search.add_argument("--held-out", type=int, metavar="N", help="examples to test on (default: the paper's number)")
    search.add_argument("--p", type=int, default=10, help="heads in the pool (default: 10)")
    search.add_argument("--k", type=int, default=3, help="heads in a subset, at most (default: 3)")
    search.add_argument("--full-sweep", action="store_true", help="evaluate every head on every discovery example")
    search.add_argument(
        "--screen",
        choices=("exact", "attribution"),
        default="exact",
        help="attribution: stage 1 is approximate, it evaluates only the heads that one gradient an example promises most of",
    )
    search.add_argument("--shortlist", type=int, metavar="M", help=f"heads that attribution picks (default: {SHORTLIST})")
    search.add_argument("--resume", metavar="RUN", help="go on with a stopped, interrupted or failed search")
    _store_options(search)

    demo = commands.add_parser("demo", help="run the demo search, unless the store holds a search already")
    demo.set_defaults(run=_demo)
    _store_options(demo)

    sweep = commands.add_parser("sweep", help="stage 1 alone, over the given rows in file order")
    sweep.set_defaults(run=_sweep)
    _model_options(sweep)
    sweep.add_argument("--limit", type=int, metavar="N", help="take the first N rows only")
    sweep.add_argument("--json", action="store_true", help="print one JSON object")

    evaluate = commands.add_parser("evaluate", help="accuracy on the given rows, intact or without some heads")
    evaluate.set_defaults(run=_evaluate)
    _model_options(evaluate)
    evaluate.add_argument("--heads", default="", metavar="SET", help='heads to remove, such as "L2H0,L2H6" (default: none)')
    evaluate.add_argument("--limit", type=int, metavar="N", help="take the first N rows only")
    evaluate.add_argument("--outcomes", metavar="FILE.jsonl", help="write one line an example, in file order")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object")

    show = commands.add_parser("show", help="list the searches, or print one")
    show.set_defaults(run=_show)
    show.add_argument("search", nargs="?", metavar="RUN", help="a search's id, or the beginning of it")
    _store_options(show)

    export = commands.add_parser("export", help="write a search to one file, which another store can import")
    export.set_defaults(run=_export)
    export.add_argument("search", metavar="RUN", help="a search's id, or the beginning of it")
    export.add_argument("--out", metavar="FILE", help="where to (default: cel-search-RUN.zip in this folder)")
    _store_options(export)

    take_in = commands.add_parser("import", help="take in a search that another store exported")
    take_in.set_defaults(run=_import)
    take_in.add_argument("file", metavar="FILE", help="what export wrote")
    _store_options(take_in)

    measured = commands.add_parser("bench", help="measure the engine beside the plain way, on the same rows, in turn")
    measured.set_defaults(run=_bench)
    _model_options(measured)
    measured.add_argument("--rows", type=int, default=24, metavar="N", help="examples to search on (default: 24)")
    measured.add_argument("--json", action="store_true", help="print one JSON object")

    toy = commands.add_parser("toy", help="train many toy models: the theory's predictions beside what is measured")
    toy_command.add_options(toy)
    return parser


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="M", help="demo, a hub id, a local folder or a .gguf file")
    parser.add_argument("--task", metavar="T", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--data", metavar="DIR", help="folder of JSONL or Parquet rows, or 'samples' (default: the hub)")
    parser.add_argument("--kinds", metavar="K,K", help="arithmetic: only these kinds, such as 2ds,3ds")
    parser.add_argument("--seed", type=int, default=0, help="of the draw, and of generated rows (default: 0)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16 (default: by device)")
    parser.add_argument("--chat-template", action="store_true", help="put each prompt into the model's chat template")
    parser.add_argument("--allow-code-execution", action="store_true", help="MBPP: run the programs the model writes")


def _store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", default=str(DEFAULT_PATH), metavar="PATH", help="the store file (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _kinds(chosen: argparse.Namespace) -> tuple[str, ...]:
    return tuple(kind.strip() for kind in (chosen.kinds or "").split(",") if kind.strip())


def _shortlist(chosen: argparse.Namespace) -> int | None:
    if chosen.screen == "attribution":
        return SHORTLIST if chosen.shortlist is None else chosen.shortlist
    if chosen.shortlist is not None:
        raise ConfigError(f"--shortlist {chosen.shortlist} goes with --screen attribution: give both, or neither")
    return None


def _required(chosen: argparse.Namespace) -> Task:
    for option in ("model", "task"):
        if getattr(chosen, option) is None:
            raise ConfigError(f"--{option} is missing: see  python -m cel_core --help")
    return find_task(chosen.task)


def _search(chosen: argparse.Namespace) -> None:
    store = Store(chosen.store)
    if chosen.resume is not None:
        search = store.search(chosen.resume).id
        if chosen.allow_code_execution:
            store.allow_code_execution(search)
        with _Bar() as bar:
            record = experiment.resume(search, store, bar.report)
    else:
        _required(chosen)
        names = ("model", "task", "data", "p", "k", "seed", "device", "dtype", "chat_template", "full_sweep")
        config = SearchConfig(
            **{name: getattr(chosen, name) for name in names},
            kinds=_kinds(chosen),
            shortlist=_shortlist(chosen),
            n_discovery=chosen.discovery,
            n_held_out=chosen.held_out,
            allow_code_execution=chosen.allow_code_execution,
        )
        with _Bar() as bar:
            record = experiment.start(config, store, bar.report)
    _print_search(store, record.id, chosen.json)


def _demo(chosen: argparse.Namespace) -> None:
    store = Store(chosen.store)
    there = [record.id for record in store.searches() if is_demo(record.config) and record.status is Status.DONE]
    if not there:
        with _Bar() as bar:
            there = [experiment.start(replace(DEMO, full_sweep=True), store, bar.report).id]
    _print_search(store, there[0], chosen.json)


def _print_search(store: Store, search: str, as_json: bool) -> None:
    record = store.search(search)
    singles, subsets = store.ranking(record.id, 1), store.ranking(record.id, 2)
    if as_json:
        pool = [
            {"head": str(t.head_set), "gain": t.gain, "fixes": t.fixes, "harms": t.harms} for t in singles[: record.config.p]
        ]
        _print_json(record.as_json() | {"pool": pool})
    else:
        print(printing.search_report(record, singles, subsets))


def _sweep(chosen: argparse.Namespace) -> None:
    evaluator, examples = _evaluator(chosen)
    heads = all_heads(*evaluator.model.geometry[:2])

    def outcomes(head_sets: Sequence[HeadSet], numbers: Sequence[int]) -> np.ndarray:
        row_of = {head_set: row for row, head_set in enumerate(head_sets)}
        columns: dict[str, list[int]] = {}  # by example: a row that occurs twice is evaluated once
        for column, number in enumerate(numbers):
            columns.setdefault(examples[number].key, []).append(column)
        asked = [examples[numbers[column[0]]] for column in columns.values()]
        correct = np.zeros((len(head_sets), len(numbers)), dtype=bool)
        for made in evaluator.outcomes(head_sets, asked):
            for head_set, rights in zip(made.head_sets, made.correct, strict=True):
                for key, right in zip(made.examples, rights, strict=True):
                    correct[row_of[head_set], columns[key]] = right
            bar.add(len(made.head_sets) * sum(len(columns[key]) for key in made.examples))
        return correct

    with _Bar("sweep", (len(heads) + 1) * len(examples)) as bar:
        tallies = algorithm.screen(heads, len(heads), range(len(examples)), outcomes)
    best = tallies[0]
    found = {
        "model": chosen.model,
        "task": chosen.task,
        "n": len(examples),
        "intact_correct": best.n_correct - best.fixes + best.harms,
        "heads": [{"head": str(t.head_set), "fixes": t.fixes, "harms": t.harms, "gain": t.gain} for t in tallies],
    }
    _print_json(found) if chosen.json else print(printing.sweep_report(found))


def _evaluate(chosen: argparse.Namespace) -> None:
    head_set = HeadSet.parse(chosen.heads)
    if chosen.outcomes:
        _write_text(chosen.outcomes, "")  # before the work, so that it is not done in vain
    evaluator, examples = _evaluator(chosen)
    head_set.within(*evaluator.model.geometry[:2])
    distinct = list({example.key: example for example in examples}.values())
    found: dict[str, dict[str, Any]] = {}
    with _Bar("evaluate", len(distinct)) as bar:
        for made in evaluator.outcomes([head_set], distinct):
            found |= {row["example"]: row for row in as_table([made]).to_pylist()}
            bar.add(made.correct.size)
    rows = [_outcome_line(number, example, found[example.key]) for number, example in enumerate(examples)]
    if chosen.outcomes:
        _write_text(chosen.outcomes, "".join(f"{json.dumps(row)}\n" for row in rows))
    result = _accuracy(chosen, head_set, evaluator.task, examples, rows)
    result["first_prompt"] = evaluator.rendered(examples[0])
    if chosen.json:
        _print_json(result)
    else:
        also = f" (acc {printing.percent(result['acc'])} %)" if "acc" in result else ""
        print(f"{result['n_correct']:,} of {result['n']:,} right: {printing.percent(result['accuracy'])} %{also}")
        for kind, part in result.get("kinds", {}).items():
            print(f"  {kind}  {part['n_correct']} of {part['n']}: {printing.percent(part['n_correct'] / part['n'])} %")


def _write_text(path: str, text: str) -> None:
    try:
        typed_path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--outcomes {path} cannot be written ({error.strerror}): give another file") from error


def _outcome_line(number: int, example: Example, outcome: dict[str, Any]) -> dict[str, Any]:
    margin, logprobs = outcome["margin_nats"], list(map(float, outcome["logprobs_nats"]))
    line = {
        "example": number,
        "correct": bool(outcome["correct"]),
        "answer": outcome["answer"],
        "margin_nats": None if margin != margin else float(margin),
    }
    if example.continuations:
        line["logprobs_nats"] = logprobs
    else:
        line["detail"] = outcome["detail"]
    return line | ({"kind": example.kind} if example.kind else {})


def _accuracy(
    chosen: argparse.Namespace, head_set: HeadSet, task: Task, examples: list[Example], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    right = [row["correct"] for row in rows]
    result: dict[str, Any] = {
        "model": chosen.model,
        "task": chosen.task,
        "heads": [str(head) for head in head_set],
        "n": len(rows),
        "n_correct": sum(right),
        "accuracy": sum(right) / len(rows),
    }
    if task.scoring == Scoring.CHOICE_PER_CHARACTER:
        likeliest = [int(np.argmax(row["logprobs_nats"])) == e.gold for row, e in zip(rows, examples, strict=True)]
        result |= {"acc": sum(likeliest) / len(rows), "acc_norm": result["accuracy"]}
    if any(example.kind for example in examples):
        kinds = sorted({example.kind for example in examples})
        by_kind = {kind: [r for r, e in zip(right, examples, strict=True) if e.kind == kind] for kind in kinds}
        result["kinds"] = {kind: {"n": len(part), "n_correct": sum(part)} for kind, part in by_kind.items()}
    return result


def _show(chosen: argparse.Namespace) -> None:
    store = Store(chosen.store)
    if chosen.search is not None:
        _print_search(store, chosen.search, chosen.json)
    elif chosen.json:
        _print_json({"searches": [record.as_json() for record in store.searches()]})
    else:
        print(printing.search_list(store.searches()))


def _export(chosen: argparse.Namespace) -> None:
    found = Store(chosen.store).bundle(chosen.search)
    path = typed_path(chosen.out or bundle.file_name(found.record.id))
    bundle.save(found, path)
    result = {"search_id": found.record.id, "file": str(path), "n_outcomes": found.outcomes.num_rows}
    _print_json(result) if chosen.json else print(f"search {found.record.id} is in {path}")


def _import(chosen: argparse.Namespace) -> None:
    found = bundle_reading.read(typed_path(chosen.file))
    kept = Store(chosen.store).keep(found)
    result = {"search_id": kept.search, "was_there": kept.was_there, "n_new_outcomes": kept.n_new}
    _print_json(result) if chosen.json else print(kept)


def _bench(chosen: argparse.Namespace) -> None:
    _required(chosen)
    if chosen.rows < 1:
        raise ConfigError(f"--rows {chosen.rows}: take at least 1 row")
    names = ("model", "task", "data", "seed", "device", "dtype")
    config = SearchConfig(
        **{name: getattr(chosen, name) for name in names},
        kinds=_kinds(chosen),
        n_discovery=chosen.rows,
        n_held_out=1,
        allow_code_execution=chosen.task.startswith("mbpp"),  # no program is run
    )
    found = bench.run(config, lambda stage: print(stage, file=sys.stderr))
    _print_json(found) if chosen.json else print(printing.bench_report(found))


def _evaluator(chosen: argparse.Namespace) -> tuple[Evaluator, list[Example]]:
    task = _required(chosen)
    require_code_execution(task, chosen.allow_code_execution)
    if chosen.limit is not None and chosen.limit < 1:
        raise ConfigError(f"--limit {chosen.limit}: take at least 1 row")
    examples = read_examples(task, chosen.data, chosen.seed, _kinds(chosen))[: chosen.limit]
    config = SearchConfig(chosen.model, chosen.task, device=chosen.device, dtype=chosen.dtype)
    if note := template_note(task, chosen.chat_template):
        print(f"note: {note}", file=sys.stderr)
    model = experiment.load_checked(config)
    return Evaluator(model, task, chosen.chat_template, chosen.allow_code_execution), examples


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


class _Bar:
    """A progress bar on standard error, with the time left."""

    def __init__(self, stage: str = "loading", total: int = 0) -> None:
        self._stage = ""
        self._bar: tqdm | None = None
        if total:
            self._open(stage, total)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int) -> None:
        """Count evaluations."""
        assert self._bar is not None
        self._bar.update(count)

    def report(self, progress: experiment.Progress) -> None:
        """Follow a search, one bar a stage."""
        if progress.stage != self._stage:
            if self._bar is None:
                print(f"search {progress.search}", file=sys.stderr)
            self._open(progress.stage, progress.total)
        assert self._bar is not None
        self._bar.update(progress.done - self._bar.n)

    def _open(self, stage: str, total: int) -> None:
        if self._bar is not None:
            self._bar.close()
        self._stage = stage
        self._bar = tqdm(total=total, desc=stage, unit=" evaluations", file=sys.stderr, disable=not total)
