"""A search carried to another store as one file: all of it arrives, nothing else changes, and nothing forged comes in."""

import dataclasses
import io
import json
import random
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from cel_core import bundle as bundles
from cel_core import bundle_reading, cli, experiment, tables
from cel_core.config import Protocol, SearchConfig
from cel_core.errors import DataError, SealedError, StoreError
from cel_core.evaluation import Evaluator
from cel_core.heads import INTACT, HeadSet
from cel_core.records import Part, Status
from cel_core.store import Store
from cel_core.tasks import Example
from cel_core.tasks.split import Split
from tests.conftest import build_tiny
from tests.pages import made_up

TABLES = {
    "searches": "SELECT * EXCLUDE (owner, protocol, status) FROM searches ORDER BY id",
    "protocols": "SELECT key, content FROM protocols ORDER BY key",
    "examples": "SELECT * EXCLUDE (id) FROM examples ORDER BY key",
    "search_examples": """SELECT m.search, e.key, m.part, m.position FROM search_examples m JOIN examples e ON e.id = m.example
        ORDER BY ALL""",
    "outcomes": """SELECT p.key AS protocol, h.name, e.key, o.* EXCLUDE (protocol, head_set, example) FROM outcomes o
        JOIN protocols p ON p.id = o.protocol JOIN head_sets h ON h.id = o.head_set JOIN examples e ON e.id = o.example
        ORDER BY p.key, h.name, e.key""",
    "rankings": "SELECT * FROM rankings ORDER BY ALL",
}


def dump(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """All that a store holds of searches, by content."""
    with duckdb.connect(store.path) as database:
        return {name: database.execute(query).fetchall() for name, query in TABLES.items()}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, str]]:
    """A store with one search of every state; tests only read it."""
    store = Store(tmp_path_factory.mktemp("filled") / "cel.duckdb")
    return store, made_up.every_state(store)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cel.duckdb")


def exported(store: Store, search: str, path: Path) -> Path:
    bundles.save(store.bundle(search), path)
    return path


@pytest.fixture
def file(filled: tuple[Store, dict[str, str]], tmp_path: Path) -> Path:
    """The bundle of a finished search."""
    return exported(filled[0], filled[1]["done"], tmp_path / "done.zip")


# --- all of it arrives ------------------------------------------------------------------------------------------------

STATES = ["large", "failed", "none", "stopped", "boolq", "done", "loading", "running"]


@pytest.mark.parametrize("state", STATES)
def test_a_search_arrives_whole_and_leaves_again_as_the_same_bytes(filled, store, tmp_path, state):
    there, ids = filled
    first = exported(there, ids[state], tmp_path / "first.zip")
    kept = store.keep(bundle_reading.read(first))
    assert (kept.search, kept.was_there, kept.n_other) == (ids[state], False, 0)
    assert exported(store, ids[state], tmp_path / "second.zip").read_bytes() == first.read_bytes()
    before, after = there.search(ids[state]), store.search(ids[state])
    assert dataclasses.replace(after, status=before.status) == before
    assert [store.ranking(after.id, stage) for stage in (1, 2)] == [there.ranking(before.id, stage) for stage in (1, 2)]
    for part in Part if before.frozen_set else [Part.DISCOVERY]:
        assert store.examples(after.id, part) == there.examples(before.id, part)
        assert store.tallies(after.id, part).equals(there.tallies(before.id, part))
        for head_set in (INTACT, before.frozen_set or HeadSet.parse("L0H1")):
            theirs, ours = (each.paired(after.id, part, head_set) for each in (there, store))
            assert theirs.to_dict("list").__repr__() == ours.to_dict("list").__repr__()


def test_a_whole_store_carried_over_search_by_search_is_equal_table_by_table(filled, store, tmp_path):
    there, ids = filled
    for search in ids.values():
        store.keep(bundle_reading.read(exported(there, search, tmp_path / "one.zip")))
    ours, theirs = dump(store), dump(there)
    for name in TABLES:
        assert ours[name] == theirs[name], name
    assert len(ours["outcomes"]) > 30_000


@pytest.mark.parametrize(
    ("state", "status"), [("running", Status.INTERRUPTED), ("done", Status.DONE), ("failed", Status.FAILED)]
)
def test_a_search_that_runs_arrives_at_rest(filled, store, tmp_path, state, status):
    there, ids = filled
    store.keep(bundle_reading.read(exported(there, ids[state], tmp_path / "one.zip")))
    assert store.search(ids[state]).status is status


def test_a_search_in_line_arrives_stopped(store, tmp_path):
    waiting = store.create_search(SearchConfig("demo", "carry"), {}, Status.QUEUED)
    other = Store(tmp_path / "other.duckdb")
    other.keep(bundle_reading.read(exported(store, waiting, tmp_path / "one.zip")))
    assert other.search(waiting).status is Status.STOPPED


def test_an_empty_margin_and_a_program_arrive(store, tmp_path):
    config = SearchConfig("m", "mbpp", n_discovery=1, n_held_out=1, allow_code_execution=True)
    examples = [Example("mbpp", f"write {i}\r\n\x00", (), 0, "", tests=("assert f()",)) for i in range(2)]
    search = store.create_search(config, {"python": "3"})
    model = {"spec": "m", "family": "llama", "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "dtype": "float32", "device": "cpu"}
    store.plan(
        search, Protocol("f", "float32", "mbpp", 1, "program", "", 256, 1.1), model, Split(examples[:1], examples[1:], [])
    )
    row = {"head_set": "", "example": examples[0].key, "correct": False, "answer": "def f():\n\treturn 'ü\x1b'", "detail": "d"}
    table = pa.Table.from_pylist([row | {"margin_nats": float("nan"), "logprobs_nats": []}], schema=bundles.OUTCOMES)
    store.add_outcomes(search, Part.DISCOVERY, table)
    other = Store(tmp_path / "other.duckdb")
    other.keep(bundle_reading.read(exported(store, search, tmp_path / "one.zip")))
    for name in set(TABLES) - {"searches"}:
        assert dump(other)[name] == dump(store)[name]
    assert other.search(search).config == dataclasses.replace(config, allow_code_execution=False)


# --- twice, and beside others -----------------------------------------------------------------------------------------


def test_importing_twice_says_so_and_changes_nothing(store, file):
    search = store.keep(bundle_reading.read(file)).search
    before = dump(store)
    kept = store.keep(bundle_reading.read(file))
    assert str(kept) == f"search {search} is here already: nothing changed"
    assert dump(store) == before


def test_outcomes_that_came_later_are_added_to_a_search_that_is_here(store, file, filled):
    bundle = bundle_reading.read(file)
    fewer = dataclasses.replace(bundle, outcomes=bundle.outcomes.slice(0, 100))
    store.keep(fewer)
    assert str(
        store.keep(bundle)
    ) == f"search {bundle.record.id} is here already: {bundle.outcomes.num_rows - 100:,} of its " + ("outcomes were new")
    assert store.bundle(bundle.record.id).outcomes.equals(bundle.outcomes)


def test_an_id_that_another_search_has_is_changed_and_said(store, file):
    bundle = bundle_reading.read(file)
    later = bundle.record.created_at + timedelta(seconds=1)
    store.keep(dataclasses.replace(bundle, record=dataclasses.replace(bundle.record, created_at=later)))
    before = dump(store)["searches"]
    kept = store.keep(bundle)
    assert kept.search != bundle.record.id and f"under a new id: {bundle.record.id} is another search here" in str(kept)
    assert [row for row in dump(store)["searches"] if row[0] == bundle.record.id] == before
    assert len(store.searches()) == 2 and store.search(kept.search).held_out == bundle.record.held_out
    again = store.keep(bundle)
    assert (again.search, again.was_there) == (kept.search, True)


def test_an_earlier_state_of_a_search_changes_nothing_and_a_later_one_stands_beside_it(store, tmp_path):
    there = Store(tmp_path / "there.duckdb")
    search = made_up.halfway(there)
    early = bundle_reading.read(exported(there, search.id, tmp_path / "early.zip"))
    search.finish()
    late = bundle_reading.read(exported(there, search.id, tmp_path / "late.zip"))
    assert not store.keep(early).was_there
    kept = store.keep(late)
    assert kept.search != search.id and "under a new id" in str(kept)
    assert [store.search(each).status for each in (search.id, kept.search)] == [Status.INTERRUPTED, Status.DONE]
    assert store.search(search.id).frozen_set is None  # what arrives beside a search does not unseal it
    before = dump(store)
    assert [each.was_there for each in (store.keep(early), store.keep(late))] == [True, True]
    assert dump(store) == before
    other = Store(tmp_path / "other.duckdb")
    other.keep(late)
    before = dump(other)
    assert str(other.keep(early)) == f"search {search.id} is here already: nothing changed"
    assert dump(other) == before


def test_what_is_known_here_is_merged_and_never_overwritten(store, file):
    bundle = bundle_reading.read(file)
    example = bundle.sides[Part.DISCOVERY][0]
    other = store.create_search(SearchConfig("m", "arithmetic"), {})
    assert bundle.protocol is not None
    store.plan(other, bundle.protocol, bundle.record.model, Split([example], bundle.sides[Part.HELD_OUT][:1], []))
    mine = bundle.outcomes.filter(pa.compute.equal(bundle.outcomes["example"], example.key))  # type: ignore[attr-defined]
    (first,) = mine.slice(0, 1).to_pylist()
    store.add_outcomes(other, Part.DISCOVERY, pa.Table.from_pylist([first | {"correct": not first["correct"]}]))
    kept = store.keep(bundle)
    assert (kept.n_new, kept.n_other) == (bundle.outcomes.num_rows - 1, 1)
    assert "1 were known here with the other verdict and stay so" in str(kept)
    positions, correct = store.known(other, Part.DISCOVERY)[HeadSet.parse(first["head_set"])]
    assert correct.tolist() == [not first["correct"]]
    assert len(dump(store)["protocols"]) == 1 and len(dump(store)["outcomes"]) == bundle.outcomes.num_rows


def test_an_import_that_fails_midway_leaves_the_store_as_it_was(store, file, monkeypatch):
    made_up.stopped(store)
    before = dump(store)
    bundle = bundle_reading.read(file)

    def fail(*_: object) -> None:
        raise duckdb.IOException("IO Error: No space left on device")

    monkeypatch.setattr(tables, "insert_ranking", fail)
    with pytest.raises(StoreError, match="No space left on device"):
        store.keep(bundle)
    assert dump(store) == before
    monkeypatch.undo()
    assert not store.keep(bundle).was_there


# --- the seal ---------------------------------------------------------------------------------------------------------


def rows_of(file: Path, member: str) -> list[Any]:
    with zipfile.ZipFile(file) as archive:
        return [json.loads(line) for line in archive.read(member).splitlines()]


def test_held_out_outcomes_stay_until_a_set_is_frozen_whoever_made_them(store, tmp_path):
    waiting = made_up.halfway(store, made_up.Story(seed=1))
    # another search, with the same protocol, has the held-out examples on its discovery side and knows their outcomes
    swapped = made_up.MadeUpSearch(store, waiting.story)
    swapped.split = Split(waiting.split.held_out, waiting.split.discovery, [])
    list(swapped.plan().screening(3))
    file = exported(store, waiting.id, tmp_path / "one.zip")
    assert {block["part"] for block in rows_of(file, "outcomes.jsonl")} == {"discovery"}
    held_out = {example.key for example in waiting.split.held_out}
    assert not held_out & set(store.bundle(waiting.id).outcomes["example"].to_pylist())
    assert len([row for row in rows_of(file, "examples.jsonl") if row["part"] == "held-out"]) == len(held_out)


def test_an_import_unseals_nobody_elses_held_out_side(store, file):
    bundle = bundle_reading.read(file)
    waiting = store.create_search(bundle.record.config, {})
    assert bundle.protocol is not None
    store.plan(waiting, bundle.protocol, bundle.record.model, Split(*bundle.sides.values(), []))  # the very same plan
    store.keep(bundle)
    with pytest.raises(SealedError):
        store.paired(waiting, Part.HELD_OUT, HeadSet.parse("L0H1"))
    assert store.search(waiting).frozen_set is None
    assert bundle.outcomes.num_rows > store.bundle(waiting).outcomes.num_rows  # what travels of it is discovery alone


def test_consent_to_run_code_stays_at_home(store, tmp_path):
    search = store.create_search(SearchConfig("m", "mbpp", allow_code_execution=True), {})
    manifest = manifest_of(exported(store, search, tmp_path / "one.zip"))
    assert "allow_code_execution" not in manifest["search"]["config"]
    manifest["search"]["config"]["allow_code_execution"] = True
    with pytest.raises(DataError, match="would allow the code that a model writes to run here"):
        bundle_reading.read(forged(tmp_path / "one.zip", lambda found: found.update({"manifest.json": manifest})))
    store.keep(bundle_reading.read(exported(store, search, tmp_path / "one.zip")))
    assert store.search(search).config.allow_code_execution  # the one that is here keeps its own
    other = Store(tmp_path / "other.duckdb")
    other.keep(bundle_reading.read(tmp_path / "one.zip"))
    other.allow_code_execution(search)
    assert other.search(search).config.allow_code_execution


# --- what is forged or damaged is refused -----------------------------------------------------------------------------

Content = dict[str, Any]


def manifest_of(file: Path) -> Any:
    with zipfile.ZipFile(file) as archive:
        return json.loads(archive.read("manifest.json"))


def forged(file: Path, edit: Callable[[Content], object]) -> Path:
    """The same file after an edit of its parsed content, tables being lists of rows; rows are counted anew."""
    content: Content = {name: rows_of(file, name) for name in bundles.MEMBERS[1:]}
    manifest = content["manifest.json"] = manifest_of(file)
    rows = dict(manifest.get("rows", {}))
    edit(content)
    if content["manifest.json"].get("rows") == rows:
        sizes = {name: [len(row.get("positions", "1")) for row in content[name] if isinstance(row, dict)] for name in content}
        rows = {name.removesuffix(".jsonl"): sum(sizes[name]) for name in bundles.MEMBERS[1:]}
        content["manifest.json"]["rows"] = rows
    with zipfile.ZipFile(file, "w") as archive:
        for name in bundles.MEMBERS:
            rows = [content[name]] if name == "manifest.json" else content[name]
            archive.writestr(name, "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return file


def search_of(content: Content) -> Any:
    return content["manifest.json"]["search"]


def frozen_blocks(content: Content) -> list[Any]:
    frozen = search_of(content)["frozen_set"]
    return [b for b in content["outcomes.jsonl"] if b["part"] == "held-out" and b["head_set"] == frozen]


def without_frozen_set(content: Content) -> None:
    names = ("frozen_set", "frozen_at", "discovery_gain", "held_out")
    search_of(content).update({name: None for name in names} | {"status": "stopped"})


def swap_first_ranks(content: Content) -> None:
    first, second = content["rankings.jsonl"][:2]
    first["rank"], second["rank"] = 2, 1
    content["rankings.jsonl"][:2] = second, first


def flip(block: Any) -> None:
    block["correct"][0] = not block["correct"][0]


EDITS: list[tuple[Callable[[Content], object], str]] = [
    # the manifest
    (lambda c: c["manifest.json"].update(format="something else"), "its manifest is not that of a search"),
    (lambda c: c["manifest.json"].update(version=2), r"a newer version of this program wrote it \(version 2, not 1\)"),
    (lambda c: c["manifest.json"].update(schema=999), r"a newer version of this program wrote it \(schema 999"),
    (lambda c: c["manifest.json"].update(schema="3"), "schema is '3', not a whole number"),
    (lambda c: c["manifest.json"].update(more=1), "the manifest has the unknown field 'more'"),
    (lambda c: c["manifest.json"].pop("protocol"), "the manifest lacks the field 'protocol'"),
    (lambda c: c["manifest.json"]["rows"].update(outcomes=1), "its tables have .* rows, not"),
    # the protocol: what outcomes are kept under is worked out here
    (lambda c: c["manifest.json"]["protocol"].update(key="0" * 32), "its protocol's content has the key .*, not '000"),
    (lambda c: c["manifest.json"]["protocol"]["content"].update(model="x"), "its protocol's content has the key"),
    (lambda c: c["manifest.json"]["protocol"]["content"].update(more=1), "the protocol has the unknown field 'more'"),
    (lambda c: c["manifest.json"]["protocol"]["content"].pop("dtype"), "the protocol lacks the field 'dtype'"),
    (lambda c: c["manifest.json"].update(protocol=None), "it has examples or results, but no protocol"),
    # the search
    (lambda c: search_of(c).update(id="../../x"), "the search's id is '../../x', not six digits"),
    (lambda c: search_of(c).update(id="abc"), "not six digits"),
    (lambda c: search_of(c).update(status="running"), "its status is 'running'"),
    (lambda c: search_of(c).update(status=None), "its status is None"),
    (lambda c: search_of(c).update(created_at="2999-01-01T00:00:00+00:00"), "created_at is .*in the future"),
    (lambda c: search_of(c).update(created_at="0001-01-01T00:00:00+14:00"), "created_at is"),
    (lambda c: search_of(c).update(updated_at=5), "updated_at is 5, not a text"),
    (lambda c: search_of(c).update(done=-1), "done is -1, not between"),
    (lambda c: search_of(c).update(total=True), "total is True, not a whole number"),
    (lambda c: search_of(c).update(duration_s=-1), "duration_s is -1, below 0"),
    (lambda c: search_of(c).update(token_layers=None), "token_layers is None, not a finite number"),
    (lambda c: search_of(c).update(notes="note"), "a note is 'note', not a list"),
    (lambda c: search_of(c).update(notes=["\x1b[2J"]), "a note holds control characters"),
    (lambda c: search_of(c).update(notes=["\ud800"]), "a note holds half a letter"),
    (lambda c: search_of(c).update(error="x" * 5000), "error has 5,000 characters"),
    (lambda c: search_of(c).update(environment=[1]), "the environment is"),
    (lambda c: search_of(c)["config"].update(p=10**9, k=10**9), "p is 1000000000, not between"),
    (lambda c: search_of(c)["config"].update(k=9), "k = 9 is larger than p = 5"),
    (lambda c: search_of(c)["config"].update(task="telepathy"), "task 'telepathy' is unknown"),
    (lambda c: search_of(c)["config"].update(task="boolq"), "its protocol is of the task 'arithmetic'"),
    (lambda c: search_of(c)["config"].update(seed=1.5), "the plan.seed is 1.5, not a whole number"),
    (lambda c: search_of(c)["config"].update(full_sweep="yes"), "not true or false"),
    (lambda c: search_of(c)["model"].update(n_layers=0), "n_layers is 0, not between"),
    (lambda c: search_of(c)["model"].update(n_layers=9999, n_heads=9999), "its model has 99,980,001 heads"),
    (lambda c: search_of(c)["model"].update(n_layers=2), "is not in this model"),
    (lambda c: search_of(c)["model"].pop("n_heads"), "n_heads is None, not a whole number"),
    (lambda c: search_of(c).update(n_discovery=39), "its plan has 39 and 40 examples, its sides have others"),
    # the result
    (lambda c: search_of(c).update(frozen_set="L0H0"), "its frozen set, 'L0H0', is not the best of its ranking"),
    (lambda c: search_of(c).update(frozen_set="l0h0"), "the head set 'l0h0' is not written as 'L0H0'"),
    (lambda c: search_of(c).update(frozen_set="head"), "'head' is not a head"),
    (lambda c: search_of(c).update(discovery_gain=0.9), "is not the best of its ranking"),
    (lambda c: search_of(c).update(frozen_at=None), "is not the best of its ranking"),
    (lambda c: search_of(c)["held_out"].update(fixes=40), "its held-out counts are .* but its outcomes give"),
    (lambda c: search_of(c)["held_out"].update(n=10**9), "n is 1000000000, not between"),
    (lambda c: search_of(c).update(held_out=None), "it is done, though the held-out comparison is missing"),
    (lambda c: flip(frozen_blocks(c)[0]), "its held-out counts are"),
    (lambda c: c["outcomes.jsonl"].remove(frozen_blocks(c)[0]), "its held-out counts are"),
    (without_frozen_set, "it holds outcomes of held-out examples, though no head set is frozen: they are sealed"),
    # examples
    (lambda c: c["examples.jsonl"][0].update(context="another question"), "an example's content has the key"),
    (lambda c: c["examples.jsonl"][0].update(key="0" * 32), "an example's content has the key"),
    (lambda c: c["examples.jsonl"][1].update(position=0), "example 1 of a side says that it is 0"),
    (lambda c: c["examples.jsonl"][0].update(part="test"), "'test' is no side of a search"),
    (lambda c: c["examples.jsonl"].append(c["examples.jsonl"][0] | {"part": "held-out", "position": 40}), "stands in it twice"),
    (lambda c: c["examples.jsonl"][0].update(tests="assert True"), "tests is 'assert True', not a list"),
    # outcomes
    (lambda c: c["outcomes.jsonl"].append(c["outcomes.jsonl"][0]), "an outcome stands in it twice"),
    (lambda c: c["outcomes.jsonl"][0]["positions"].__setitem__(0, 1), "an outcome stands in it twice"),
    (lambda c: c["outcomes.jsonl"][0]["positions"].__setitem__(0, 40), "are of no discovery example"),
    (lambda c: c["outcomes.jsonl"][0]["positions"].__setitem__(0, -1), "are of no discovery example"),
    (lambda c: c["outcomes.jsonl"][0]["positions"].__setitem__(0, 0.5), "holds positions of another type"),
    (lambda c: c["outcomes.jsonl"][0]["positions"].__setitem__(0, 2**70), "damaged or no bundle"),
    (lambda c: c["outcomes.jsonl"][0]["correct"].__setitem__(0, 1), "holds correct of another type"),
    (lambda c: c["outcomes.jsonl"][0]["correct"].pop(), "have different lengths"),
    (lambda c: c["outcomes.jsonl"][0]["answer"].__setitem__(0, "\ud800"), "damaged or no bundle"),
    (lambda c: c["outcomes.jsonl"][0]["margin_nats"].__setitem__(0, 1e200), "an outcome's numbers are not finite"),
    (lambda c: c["outcomes.jsonl"][0]["margin_nats"].__setitem__(0, float("nan")), "it holds the number NaN"),
    (lambda c: c["outcomes.jsonl"][0]["logprobs_nats"].__setitem__(0, []), "more or fewer choices than its example"),
    (lambda c: c["outcomes.jsonl"][0]["logprobs_nats"].__setitem__(0, [1e99]), "an outcome's numbers are not finite"),
    (lambda c: c["outcomes.jsonl"][0]["logprobs_nats"].__setitem__(0, [None]), "holds logprobs_nats of another type"),
    (lambda c: c["outcomes.jsonl"][1].update(head_set="L99H0"), "L99H0 is not in this model"),
    (lambda c: c["outcomes.jsonl"][1].update(head_set=5), "a head set is 5, not a text"),
    # rankings
    (swap_first_ranks, "a ranking is out of order"),
    (lambda c: c["rankings.jsonl"][0].update(rank=2), "the ranks of a ranking do not count from 1"),
    (lambda c: c["rankings.jsonl"][0].update(stage=3), "stage is 3, not between 1 and 2"),
    (lambda c: c["rankings.jsonl"][0].update(fixes=39), "is not what its outcomes give"),
    (lambda c: c["rankings.jsonl"][0].update(exact=False), "the best of a ranking are not evaluated in full"),
    (lambda c: c["rankings.jsonl"][0].update(exact=1), "exact is 1, not true or false"),
    (lambda c: c["rankings.jsonl"][0].update(n=41), "is not what its outcomes give"),
    # the lines themselves
    (lambda c: c["rankings.jsonl"].append("[" * 100_000 + "\n"), "its values are nested too deeply"),
    (lambda c: c["rankings.jsonl"].append("{}{}\n"), "damaged or no bundle"),
    (lambda c: c["rankings.jsonl"].append("1" * 5000 + "\n"), "damaged or no bundle"),
    (lambda c: c["rankings.jsonl"].append('"' + "x" * bundles.MAX_LINE_BYTES + '"\n'), "it holds a line of more than"),
    (lambda c: c["examples.jsonl"].append("[]\n"), r"an example is \[\], not an object"),
]


@pytest.mark.parametrize(("edit", "said"), EDITS, ids=[said[:50] for _, said in EDITS])
def test_a_file_that_contradicts_itself_is_refused_in_one_line(file, edit, said):
    bundle_reading.read(file)
    with pytest.raises(DataError, match=said) as refused:
        bundle_reading.read(forged(file, edit))
    line = str(refused.value)
    assert line.startswith("bundle 'done.zip' ") and "\n" not in line and len(line) < 400 and "export the search again" in line


def test_a_choice_that_is_not_the_gold_one_cannot_be_right(filled, tmp_path):
    file = exported(filled[0], filled[1]["boolq"], tmp_path / "boolq.zip")
    with pytest.raises(DataError, match="an outcome is called right whose choice is not the gold one"):
        bundle_reading.read(forged(file, lambda content: flip(content["outcomes.jsonl"][0])))


def test_bounds_of_a_dropped_set_are_held_against_its_outcomes(filled, tmp_path):
    file = exported(filled[0], filled[1]["large"], tmp_path / "large.zip")

    def narrow(content: Content) -> None:
        dropped = [row for row in content["rankings.jsonl"] if not row["exact"] and row["stage"] == 1]
        assert dropped[-1]["harms"] > 0
        dropped[-1].update(harms=dropped[-1]["harms"] + 40, n_correct=dropped[-1]["n_correct"] - 40)

    bundle_reading.read(file)
    with pytest.raises(DataError, match="is not what its outcomes give"):
        bundle_reading.read(forged(file, narrow))


def test_half_precision_may_differ_by_a_few_answers_and_no_more(filled, tmp_path):
    def in_half(n_more: int) -> Callable[[Content], None]:
        def edit(content: Content) -> None:
            protocol = content["manifest.json"]["protocol"]
            protocol["content"]["dtype"] = "bfloat16"
            protocol["key"] = Protocol(**protocol["content"]).key
            last = max((r for r in content["rankings.jsonl"] if r["stage"] == 1), key=lambda row: row["rank"])
            last["harms"] += n_more

        return edit

    file = exported(filled[0], filled[1]["done"], tmp_path / "done.zip")
    bundle_reading.read(forged(file, in_half(1)))
    with pytest.raises(DataError, match="is not what its outcomes give"):
        bundle_reading.read(forged(file, in_half(20)))


def test_every_truncation_and_foreign_file_is_one_line(file, tmp_path):
    content = file.read_bytes()
    rng = random.Random(0)
    cut = [content[: rng.randrange(len(content))] for _ in range(20)]
    for number, damaged in enumerate([b"", b"PK", b"not a zip archive at all", b"\x89PNG\r\n\x1a\n" + bytes(500), *cut]):
        path = tmp_path / f"{number}.zip"
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="no zip archive, or not all of one") as refused:
            bundle_reading.read(path)
        assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match="does not exist: check the path"):
        bundle_reading.read(tmp_path / "nowhere.zip")
    with pytest.raises(DataError, match="is damaged or no bundle"):
        bundle_reading.read(tmp_path)


def test_flipped_bits_are_refused_or_change_nothing(file, tmp_path):
    good, content, rng = bundle_reading.read(file), file.read_bytes(), random.Random(1)
    n_refused = 0
    for _ in range(200):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path = tmp_path / "flipped.zip"
        path.write_bytes(flipped)
        try:
            found = bundle_reading.read(path)
        except DataError as refused:
            assert "\n" not in str(refused)
            n_refused += 1
        else:
            assert dataclasses.replace(found, outcomes=None) == dataclasses.replace(good, outcomes=None)
            assert found.outcomes.equals(good.outcomes)
    assert n_refused > 150


def archive_of(members: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_no_member_of_an_archive_names_a_path(file, tmp_path):
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in bundles.MEMBERS}
    for name in ("../../escaped.txt", "/tmp/escaped.txt", "a/manifest.json"):
        with pytest.raises(DataError, match="it does not hold manifest.json, examples.jsonl"):
            bundle_reading.read(archive_of(members | {name: b"x"}, tmp_path / "more.zip"))
        renamed = {name if each == "manifest.json" else each: content for each, content in members.items()}
        with pytest.raises(DataError, match="it does not hold manifest.json, examples.jsonl"):
            bundle_reading.read(archive_of(renamed, tmp_path / "renamed.zip"))
    assert not list(tmp_path.rglob("escaped.txt"))


def test_a_zip_bomb_is_refused_before_it_is_unpacked(file, tmp_path, monkeypatch):
    zeros = bytes(2 * bundles.MAX_LINE_BYTES)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in bundles.MEMBERS}
    bomb = archive_of(members | {"outcomes.jsonl": zeros}, tmp_path / "bomb.zip")
    assert bomb.stat().st_size < 1_000_000
    with pytest.raises(DataError, match="it holds a line of more than"):
        bundle_reading.read(bomb)
    monkeypatch.setattr(bundle_reading, "MAX_BYTES", len(zeros))
    with pytest.raises(DataError, match="it unpacks to more than"):
        bundle_reading.read(bomb)
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(1000):
            archive.writestr(str(number), "")
    (tmp_path / "many.zip").write_bytes(many.getvalue())
    with pytest.raises(DataError, match="it does not hold"):
        bundle_reading.read(tmp_path / "many.zip")
    monkeypatch.setattr(bundle_reading, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match="it has .* bytes, more than 1,000"):
        bundle_reading.read(bomb)


def test_a_search_too_large_for_a_bundle_is_said_when_it_leaves(filled, tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "MAX_BYTES", 5000)
    with pytest.raises(StoreError, match="is too large for a bundle: copy the store itself"):
        exported(filled[0], filled[1]["done"], tmp_path / "large.zip")
    assert not list(tmp_path.iterdir())


# --- on the command line ----------------------------------------------------------------------------------------------


def test_the_command_line_exports_and_imports(filled, tmp_path, capsys, monkeypatch):
    there, ids = filled
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", ids["done"][:5], "--store", str(there.path)]) == 0
    assert capsys.readouterr().out == f"search {ids['done']} is in cel-search-{ids['done']}.zip\n"
    assert cli.main(["export", ids["done"], "--store", str(there.path), "--out", "mine.zip", "--json"]) == 0
    n_outcomes = there.bundle(ids["done"]).outcomes.num_rows
    expected = {"search_id": ids["done"], "file": "mine.zip", "n_outcomes": n_outcomes}
    assert json.loads(capsys.readouterr().out) == expected
    assert (tmp_path / "mine.zip").read_bytes() == (tmp_path / f"cel-search-{ids['done']}.zip").read_bytes()
    for said in (f"is imported, with {n_outcomes:,} new outcomes", "is here already: nothing changed"):
        assert cli.main(["import", "mine.zip", "--store", "new.duckdb"]) == 0
        assert capsys.readouterr().out == f"search {ids['done']} {said}\n"
    assert cli.main(["import", "mine.zip", "--store", "new.duckdb", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"search_id": ids["done"], "was_there": True, "n_new_outcomes": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "zz"], "error: there is no search 'zz'"),
        (["export", "{done}", "--out", "nowhere/mine.zip"], "error: 'nowhere/mine.zip' cannot be written (No such file"),
        (["import", "nowhere.zip"], "error: bundle 'nowhere.zip' does not exist: check the path"),
        (["import", "."], "error: bundle "),
    ],
)
def test_what_cannot_leave_or_arrive_is_one_line_and_status_2(filled, tmp_path, capsys, monkeypatch, arguments, said):
    there, ids = filled
    monkeypatch.chdir(tmp_path)
    assert cli.main([*(each.format(**ids) for each in arguments), "--store", str(there.path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(said) and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_consent_is_given_when_a_search_is_resumed(store, tmp_path, capsys):
    search = store.create_search(SearchConfig(str(tmp_path / "no-model"), "mbpp", data="samples"), {}, Status.STOPPED)
    for consent in ([], ["--allow-code-execution"]):
        assert cli.main(["search", "--resume", search, "--store", str(store.path), *consent]) == 2
        assert ("runs code that the model writes" in capsys.readouterr().err) == (not consent)
        assert store.search(search).config.allow_code_execution == bool(consent)


# --- going on elsewhere -----------------------------------------------------------------------------------------------


def test_a_search_stopped_there_goes_on_here_from_what_came_along(store, tmp_path, monkeypatch):
    model = build_tiny("llama")
    monkeypatch.setattr(experiment, "read_config", lambda _: (model.causal_lm.config, ""))
    config = SearchConfig("tiny", "carry", n_discovery=6, n_held_out=5, p=4, k=2, full_sweep=True)
    whole = experiment.start(config, Store(tmp_path / "whole.duckdb"), lambda _: None, lambda _: model)
    there = Store(tmp_path / "there.duckdb")

    def stop(progress: experiment.Progress) -> None:
        if progress.done > 30:
            raise experiment.Stopped("stopped")

    with pytest.raises(experiment.Stopped):
        experiment.start(config, there, stop, lambda _: model)
    (stopped,) = there.searches()
    store.keep(bundle_reading.read(exported(there, stopped.id, tmp_path / "one.zip")))
    made = list[str]()
    real = Evaluator.outcomes

    def counted(self: Evaluator, head_sets: Any, examples: Any) -> Any:
        for block in real(self, head_sets, examples):
            made.extend(f"{head_set} {key}" for head_set in block.head_sets for key in block.examples)
            yield block

    monkeypatch.setattr(Evaluator, "outcomes", counted)
    came_along = there.bundle(stopped.id).outcomes
    record = experiment.resume(stopped.id, store, lambda _: None, lambda _: model)
    assert (record.status, record.frozen_set, record.held_out) == (Status.DONE, whole.frozen_set, whole.held_out)
    brought = {f"{row['head_set']} {row['example']}" for row in came_along.to_pylist()}
    assert len(brought) >= 30 and not brought & set(made)
