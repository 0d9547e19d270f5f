"""Whether the parts of a search that came from elsewhere agree: a bundle whose counts contradict its outcomes is refused.

1. The plan: no example on both sides, each of the search's task and fit to be scored; heads within the model.
2. The outcomes: each once, of an example and a head set that exist, numbers finite, a choice right when it is the gold one;
   none of the held-out side before a set is frozen.
3. The rankings: in order, and what the outcomes give; bounds where a set was dropped.
4. The frozen set is the best of its ranking, and the held-out counts are those of its outcomes.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cel_core.bundle import Bundle
from cel_core.config import Protocol
from cel_core.heads import HeadSet
from cel_core.records import HeldOut, Part, SearchRecord, Status
from cel_core.search import Tally
from cel_core.tasks import Example, Scoring, find_task
from cel_core.untrusted import refuse, shown, whole

MAX_HEADS = 100_000  # of a model, all of which a page draws
SLACK = 0.02  # by which counts made in half precision may differ: batches of another size flip a few answers


class _Counts(NamedTuple):
    """What one side's outcomes say of each head set, beside the intact model."""

    n: dict[str, int]
    correct: dict[str, int]
    fixes: dict[str, int]
    harms: dict[str, int]


def check(bundle: Bundle) -> None:
    """Refuse a bundle that contradicts itself.

    Raises:
        CelError: it does, and where.
    """
    record = bundle.record
    task = find_task(record.config.task)
    if bundle.protocol is None:
        if any(bundle.sides.values()) or bundle.outcomes.num_rows or bundle.singles or bundle.subsets or record.model:
            refuse("it has examples or results, but no protocol")
    else:
        _check_plan(record, bundle.protocol, bundle.sides)
        _check_heads(record, [name for name in bundle.outcomes["head_set"].unique().to_pylist() if name])
        _check_values(bundle.sides, bundle.outcomes, task.scoring)
    if (record.n_discovery, record.n_held_out) != tuple(len(bundle.sides[part]) for part in Part):
        refuse(f"its plan has {record.n_discovery} and {record.n_held_out} examples, its sides have others")
    counts = {part: _counts(bundle.sides[part], bundle.outcomes) for part in Part}
    slack = 0 if bundle.protocol is None or bundle.protocol.dtype == "float32" else 1 + int(SLACK * record.n_discovery)
    _check_rankings(bundle, counts[Part.DISCOVERY], slack)
    _check_frozen(bundle, counts)


def _check_plan(record: SearchRecord, protocol: Protocol, sides: dict[Part, list[Example]]) -> None:
    task = find_task(record.config.task)
    if (protocol.task, protocol.scoring) != (task.name, task.scoring):
        refuse(f"its protocol is of the task {shown(protocol.task)}, scored as {shown(protocol.scoring)}")
    n_layers, n_heads = (whole(record.model.get(name), name, 1, 9999) for name in ("n_layers", "n_heads"))
    if n_layers * n_heads > MAX_HEADS:
        refuse(f"its model has {n_layers * n_heads:,} heads, more than {MAX_HEADS:,}")
    examples = [example for side in sides.values() for example in side]
    if not all(sides.values()) or len({example.key for example in examples}) < len(examples):
        refuse("a side of its plan is empty, or an example stands in it twice")
    writes = task.scoring == Scoring.PROGRAM
    for example in examples:
        choices = len(example.continuations)
        scored = choices == 0 if writes else choices == 1 if task.scoring == Scoring.GREEDY else choices > 1
        if example.task != task.name or not scored or example.gold >= max(1, choices) or bool(example.tests) != writes:
            refuse(f"the example {example.key} cannot be one of the task {task.name}")


def _check_heads(record: SearchRecord, names: list[str]) -> None:
    for name in names:
        HeadSet.parse(name).within(record.model["n_layers"], record.model["n_heads"])


def _check_values(sides: dict[Part, list[Example]], outcomes: pa.Table, scoring: str) -> None:
    """Each outcome once, and its values such that a page can show them."""
    examples = {example.key: example for side in sides.values() for example in side}
    keys = pa.array(list(examples), pa.string())
    number = pc.index_in(outcomes["example"], value_set=keys).to_numpy()  # type: ignore[attr-defined]
    head_set = outcomes["head_set"].combine_chunks().dictionary_encode().indices.to_numpy()
    if len(np.unique(head_set.astype(np.int64) * len(examples) + number)) < outcomes.num_rows:
        refuse("an outcome stands in it twice")
    n_logprobs = pc.list_value_length(outcomes["logprobs_nats"]).to_numpy()  # type: ignore[attr-defined]
    n_choices = np.array([len(example.continuations) for example in examples.values()], dtype=int)
    if not np.array_equal(n_logprobs, n_choices[number]):
        refuse("an outcome has log-probabilities for more or fewer choices than its example")
    for values in (pc.list_flatten(outcomes["logprobs_nats"]), outcomes["margin_nats"]):  # type: ignore[attr-defined]
        if not pc.all(pc.is_finite(values)).as_py() and len(values) > values.null_count:  # type: ignore[attr-defined]
            refuse("an outcome's numbers are not finite")
    if scoring in (Scoring.CHOICE, Scoring.CHOICE_PER_CHARACTER):
        gold = np.array([str(example.gold) for example in examples.values()], dtype=object)
        answer = outcomes["answer"].to_numpy()
        if not np.array_equal(answer == gold[number], outcomes["correct"].to_numpy()):
            refuse("an outcome is called right whose choice is not the gold one, or wrong though it is")


def _counts(side: list[Example], outcomes: pa.Table) -> _Counts:
    """Count one side's outcomes."""
    keys = pa.array([example.key for example in side], pa.string())
    number = pc.index_in(outcomes["example"], value_set=keys)  # type: ignore[attr-defined]
    here = pc.is_valid(number)  # type: ignore[attr-defined]
    number = number.filter(here).to_numpy()
    names = outcomes["head_set"].filter(here).combine_chunks().dictionary_encode()
    correct = outcomes["correct"].filter(here).to_numpy().astype(np.int8)
    found, code = names.dictionary.to_pylist(), names.indices.to_numpy()
    intact = np.full(len(side), -1, dtype=np.int8)
    if "" in found:
        chosen = code == found.index("")
        intact[number[chosen]] = correct[chosen]
    before = intact[number]
    columns = (np.ones_like(correct), correct, (before == 0) & (correct == 1), (before == 1) & (correct == 0))
    sums = (np.bincount(code, weights=each, minlength=len(found)).astype(int).tolist() for each in columns)
    return _Counts(*(dict(zip(found, each, strict=True)) for each in sums))


def _check_rankings(bundle: Bundle, counts: _Counts, slack: int) -> None:
    record = bundle.record
    if bundle.subsets and not bundle.singles:
        refuse("it ranks subsets of a pool, but no single heads")
    for ranking, largest, n_exact in ((bundle.singles, 1, record.config.p), (bundle.subsets, record.config.k, 1)):
        _check_heads(record, [str(tally.head_set) for tally in ranking])
        if len({tally.head_set for tally in ranking}) < len(ranking) or ranking != sorted(ranking, key=lambda t: t.order):
            refuse("a ranking is out of order, or ranks a head set twice")
        if not all(tally.exact for tally in ranking[:n_exact]):
            refuse("the best of a ranking are not evaluated in full")
        if ranking and counts.n.get("", 0) < record.n_discovery:
            refuse("it ranks head sets, but lacks outcomes of the intact model")
        for tally in ranking:
            if not 1 <= len(tally.head_set) <= largest or tally.n != record.n_discovery or not _agrees(tally, counts, slack):
                refuse(f"the ranking of {shown(str(tally.head_set))} is not what its outcomes give")


def _agrees(tally: Tally, counts: _Counts, slack: int) -> bool:
    """Whether a tally is what the outcomes say; of a dropped set, whether the outcomes are within its bounds."""
    name = str(tally.head_set)
    n, fixes, harms = (counts[i].get(name, 0) for i in (0, 2, 3))
    if tally.n_correct != counts.correct[""] + tally.fixes - tally.harms and slack == 0:
        return False
    if not tally.exact:
        return fixes <= tally.fixes + slack and tally.harms <= harms + slack
    return n == tally.n and max(abs(tally.fixes - fixes), abs(tally.harms - harms)) <= slack


def _check_frozen(bundle: Bundle, counts: dict[Part, _Counts]) -> None:
    record = bundle.record
    if record.frozen_set is None:
        if counts[Part.HELD_OUT].n:
            refuse("it holds outcomes of held-out examples, though no head set is frozen: they are sealed")
        if record.held_out or bundle.frozen_at or record.discovery_gain is not None or record.status is Status.DONE:
            refuse("it has a result, though no head set is frozen")
        return
    best = bundle.subsets[0] if bundle.subsets else None
    if best is None or best.head_set != record.frozen_set or best.gain != record.discovery_gain or not bundle.frozen_at:
        refuse(f"its frozen set, {shown(str(record.frozen_set))}, is not the best of its ranking")
    if record.held_out is None:
        if record.status is Status.DONE:
            refuse("it is done, though the held-out comparison is missing")
        return
    name, held_out = str(record.frozen_set), counts[Part.HELD_OUT]
    known = {held_out.n.get(each, 0) for each in ("", name)}
    found = HeldOut(
        record.n_held_out,
        *(held_out.correct.get(each, 0) for each in ("", name)),
        *(each.get(name, 0) for each in (held_out.fixes, held_out.harms)),
    )
    if known != {record.n_held_out} or found != record.held_out:
        refuse(f"its held-out counts are {tuple(record.held_out)}, but its outcomes give {tuple(found)}")
