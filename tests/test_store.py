import contextlib
import multiprocessing
import stat
from concurrent.futures import ThreadPoolExecutor

import duckdb
import numpy as np
import pandas as pd
import pytest

from cel_core import database, owner
from cel_core.config import Protocol, SearchConfig
from cel_core.errors import SealedError, StoreError
from cel_core.heads import INTACT, HeadSet
from cel_core.migrations import STEPS
from cel_core.records import Part, Status
from cel_core.search import Tally
from cel_core.store import Store
from cel_core.tasks import Example
from cel_core.tasks.split import Split

PROTOCOL = Protocol("fingerprint", "float32", "carry", 1, "greedy")
MODEL = {"spec": "m", "family": "llama", "n_layers": 3, "n_heads": 4, "n_kv_heads": 4, "dtype": "float32", "device": "cpu"}
L0H1 = HeadSet.parse("L0H1")


def examples(first: int, last: int) -> list[Example]:
    return [Example("carry", f"{i} + 1 =", (f" {i + 1}",), 0, str(i + 1)) for i in range(first, last)]


def outcomes(of: list[Example], head_set: HeadSet, correct: list[bool]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "head_set": str(head_set),
            "example": [example.key for example in of],
            "correct": correct,
            "answer": ["right" if one else "wrong" for one in correct],
            "margin_nats": np.linspace(-1, 1, len(of)),
            "logprobs_nats": [[-0.5, -1.5]] * len(of),
            "detail": "",
        }
    )


def begin(store: Store, discovery: list[Example], held_out: list[Example]) -> str:
    search = store.create_search(SearchConfig("m", "carry"), {"torch": "2"})
    store.plan(search, PROTOCOL, MODEL, Split(discovery, held_out, ["a note"]))
    return search


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "cel.duckdb")


@pytest.fixture
def search(store) -> str:
    """A search with four examples on each side, and discovery outcomes of the intact model and of L0H1."""
    search = begin(store, examples(0, 4), examples(4, 8))
    store.add_outcomes(search, Part.DISCOVERY, outcomes(examples(0, 4), INTACT, [True, True, False, False]))
    store.add_outcomes(search, Part.DISCOVERY, outcomes(examples(0, 4), L0H1, [True, False, True, True]))
    return search


# --- what is kept and asked -------------------------------------------------------------------------------------------


def test_a_plan_reads_back_in_order(store, search):
    assert store.examples(search, Part.DISCOVERY) == examples(0, 4)
    record = store.search(search)
    assert (record.n_discovery, record.n_held_out, record.notes) == (4, 4, ("a note",))
    assert (record.status, record.n_heads, record.config) == (Status.RUNNING, 12, SearchConfig("m", "carry"))


def test_outcomes_become_tallies_flips_and_known_rows(store, search):
    (tally,) = store.tallies(search, Part.DISCOVERY).to_dict("records")
    assert tally == {"head_set": "L0H1", "fixes": 2, "harms": 1, "n": 4}
    paired = store.paired(search, Part.DISCOVERY, L0H1)
    assert paired["intact_correct"].tolist() == [True, True, False, False]
    assert paired["ablated_answer"].tolist() == ["right", "wrong", "right", "right"]
    assert paired["ablated_margin_nats"].tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1])
    assert list(paired["intact_logprobs_nats"][0]) == [-0.5, -1.5]
    positions, correct = store.known(search, Part.DISCOVERY)[L0H1]
    assert dict(zip(positions.tolist(), correct.tolist(), strict=True)) == {0: True, 1: False, 2: True, 3: True}


def test_a_fact_that_is_known_stays_as_it_is(store, search):
    store.add_outcomes(search, Part.DISCOVERY, outcomes(examples(0, 4), L0H1, [False] * 4))
    assert store.tallies(search, Part.DISCOVERY)["fixes"].tolist() == [2]


def test_an_empty_margin_stays_empty(store, search):
    frame = outcomes(examples(0, 1), HeadSet.parse("L1H1"), [True]).assign(margin_nats=np.nan)
    store.add_outcomes(search, Part.DISCOVERY, frame)
    assert np.isnan(store.paired(search, Part.DISCOVERY, HeadSet.parse("L1H1"))["ablated_margin_nats"][0])


def test_outcomes_of_other_examples_are_refused_and_nothing_of_them_is_kept(store, search):
    with pytest.raises(StoreError, match="1 outcomes are not of its discovery examples"):
        store.add_outcomes(search, Part.DISCOVERY, outcomes(examples(3, 5), HeadSet.parse("L2H2"), [True, True]))
    assert HeadSet.parse("L2H2") not in store.known(search, Part.DISCOVERY)


def test_a_second_search_sees_what_the_first_one_made_of_the_same_examples(store, search):
    other = begin(store, examples(2, 6), examples(8, 10))
    positions, correct = store.known(other, Part.DISCOVERY)[L0H1]
    assert dict(zip(positions.tolist(), correct.tolist(), strict=True)) == {0: True, 1: True}


def test_another_protocol_shares_nothing(store, search):
    other = store.create_search(SearchConfig("m", "carry"), {})
    store.plan(
        other, Protocol("fingerprint", "bfloat16", "carry", 1, "greedy"), MODEL, Split(examples(0, 4), examples(4, 8), [])
    )
    assert store.known(other, Part.DISCOVERY) == {}


def test_a_search_keeps_its_protocol(store, search):
    store.plan(search, PROTOCOL, MODEL, Split([], [], []))  # a resumed search says it again
    with pytest.raises(StoreError, match="begun with another model, dtype or task version"):
        store.plan(search, Protocol("other", "float32", "carry", 1, "greedy"), MODEL, Split([], [], []))


def test_rankings_read_back_best_first(store, search):
    tallies = [Tally(HeadSet.parse("L2H10"), 5, 1, 60, 100), Tally(L0H1, 3, 1, 58, 100)]
    store.save_ranking(search, 1, tallies)
    store.save_ranking(search, 1, tallies)
    assert store.ranking(search, 1) == tallies
    assert store.ranking(search, 2) == []


def test_examples_are_counted_without_their_texts_and_read_by_position_or_key(store, search):
    whole = store.paired(search, Part.DISCOVERY, L0H1)
    columns = ["position", "intact_correct", "ablated_correct"]
    pd.testing.assert_frame_equal(store.judged(search, Part.DISCOVERY, L0H1), whole[columns])
    some = store.paired(search, Part.DISCOVERY, L0H1, [2, 0, 99], key=whole["key"][3])
    pd.testing.assert_frame_equal(some, whole[whole["position"].isin([0, 2, 3])].reset_index(drop=True))
    held_out = examples(4, 5)[0].key
    assert len(store.paired(search, Part.DISCOVERY, L0H1, [], key=held_out)) == 0


# --- the seal ---------------------------------------------------------------------------------------------------------


def every_way_to_the_held_out_side(store: Store, search: str):
    frame = outcomes(examples(4, 8), L0H1, [True] * 4)
    return {
        "examples": lambda: store.examples(search, Part.HELD_OUT),
        "known": lambda: store.known(search, Part.HELD_OUT),
        "tallies": lambda: store.tallies(search, Part.HELD_OUT),
        "judged": lambda: store.judged(search, Part.HELD_OUT, L0H1),
        "paired": lambda: store.paired(search, Part.HELD_OUT, L0H1),
        "paired, some": lambda: store.paired(search, Part.HELD_OUT, L0H1, [0], "key"),
        "paired, part as text": lambda: store.paired(search, "held-out", L0H1),  # type: ignore[arg-type]
        "add_outcomes": lambda: store.add_outcomes(search, Part.HELD_OUT, frame),
        "save_held_out": lambda: store.save_held_out(search),
    }


def test_before_the_freeze_no_public_way_leads_to_the_held_out_side(store, search):
    # another, finished search has made outcomes of the very same examples
    other = begin(store, examples(4, 8), examples(20, 22))
    store.add_outcomes(other, Part.DISCOVERY, outcomes(examples(4, 8), INTACT, [True] * 4))
    for name, ask in every_way_to_the_held_out_side(store, search).items():
        with pytest.raises(SealedError, match="sealed until a head set is frozen"):
            ask()
            pytest.fail(f"{name} answered")
    with pytest.raises(StoreError, match="4 outcomes are not of its discovery examples"):
        store.add_outcomes(search, Part.DISCOVERY, outcomes(examples(4, 8), L0H1, [True] * 4))
    assert store.search(search).held_out is None


def test_every_public_method_of_the_store_that_takes_a_part_is_tried_above():
    takes_part = {name for name, method in vars(Store).items() if "part" in getattr(method, "__annotations__", {})}
    tried = {name.split(",")[0] for name in every_way_to_the_held_out_side(None, "")}  # type: ignore[arg-type]
    assert {name for name in takes_part if not name.startswith("_")} <= tried


def test_a_set_is_frozen_once_and_only_when_its_outcomes_are_all_there(store, search):
    with pytest.raises(StoreError, match="L2H2 has 0 of 4 discovery outcomes"):
        store.freeze(search, HeadSet.parse("L2H2"), 0.1)
    with pytest.raises(StoreError, match="the empty set has 4 of 4"):
        store.freeze(search, INTACT, 0.0)
    store.freeze(search, L0H1, 0.25)
    store.freeze(search, L0H1, 0.25)
    with pytest.raises(StoreError, match="has frozen L0H1: a set is frozen once"):
        store.freeze(search, HeadSet.parse("L2H2"), 0.1)


def test_after_the_freeze_the_comparison_is_counted(store, search):
    store.freeze(search, L0H1, 0.25)
    with pytest.raises(StoreError, match="0 of 4 held-out outcomes are there"):
        store.save_held_out(search)
    store.add_outcomes(search, Part.HELD_OUT, outcomes(examples(4, 8), INTACT, [True, False, False, False]))
    store.add_outcomes(search, Part.HELD_OUT, outcomes(examples(4, 8), L0H1, [False, True, True, False]))
    store.save_held_out(search)
    store.end(search, Status.DONE, 1.5)
    held_out = store.search(search).held_out
    assert held_out == (4, 1, 2, 2, 1)
    assert (held_out.gain, held_out.intact_accuracy) == (0.25, 0.25)
    assert store.search(search).status is Status.DONE


# --- the file ---------------------------------------------------------------------------------------------------------


def test_calls_together_open_the_file_once(store, search, monkeypatch):
    opened = []
    real = database._DUCKDB.open
    monkeypatch.setattr(database._DUCKDB, "open", lambda file: opened.append(file) or real(file))
    with store.together():
        assert store.search(search).id == search
        assert len(store.tallies(search, Part.DISCOVERY)) == 1
        with pytest.raises(SealedError):
            store.known(search, Part.HELD_OUT)
        assert len(store.searches()) == 1
    assert len(opened) == 1
    store.searches()
    assert len(opened) == 2


def test_a_search_whose_process_is_gone_reads_as_interrupted_and_can_be_claimed(store, search, monkeypatch):
    with pytest.raises(StoreError, match="is running: only a stopped, interrupted or failed search can be resumed"):
        store.claim(search, {})
    monkeypatch.setattr(owner, "is_alive", lambda *_: False)
    assert store.search(search).status is Status.INTERRUPTED
    monkeypatch.undo()
    store.end(search, Status.STOPPED, 2.0)
    assert store.claim(search, {}).status is Status.RUNNING


def test_unknown_and_ambiguous_ids_are_said(store, search):
    assert store.search(search[:5]).id == search
    with pytest.raises(StoreError, match="there is no search 'zz'"):
        store.search("zz")
    with pytest.raises(StoreError, match="there is no search ''"):
        store.search("")


def test_a_store_written_by_a_newer_version_is_refused(store):
    with duckdb.connect(store.path) as database:
        database.execute("INSERT INTO schema_version VALUES (999)")
    with pytest.raises(StoreError, match=f"schema 999, this one knows {len(STEPS)}"):
        Store(store.path)


def test_opening_again_migrates_nothing(store, search):
    assert [record.id for record in Store(store.path).searches()] == [search]


@pytest.mark.parametrize("content", [b"not a database" * 100])
def test_a_file_that_is_no_store_is_refused_and_left_as_it_was(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(StoreError, match="its folder does not exist"):
        Store(tmp_path / "nowhere" / "cel.duckdb")
    with pytest.raises(StoreError, match="cannot be opened") as caught:
        Store(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_line(store, search, monkeypatch):
    class Full:
        def __getattr__(self, _):
            raise duckdb.IOException('IO Error: Could not write file "x": No space left on device\nmore')

    monkeypatch.setattr(database._DUCKDB, "cursor", lambda _: contextlib.nullcontext(Full()))
    with pytest.raises(StoreError, match="No space left on device") as caught:
        store.progress(search, "stage", 1, 2, 3.0)
    assert "\n" not in str(caught.value)


def test_handles_and_threads_of_a_process_share_the_file_and_then_let_go_of_it(store, search):
    other = Store(store.path.parent / "." / store.path.name)
    with store.together(), ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda handle: handle.searches()[0].id, [store, other] * 20))
        with pytest.raises(duckdb.Error, match="already attached"):
            duckdb.connect(store.path)
    assert found == [search] * 40
    with duckdb.connect(store.path) as database:
        assert database.execute("SELECT id FROM searches").fetchall() == [(search,)]


def _write_in_turn(path: str, first: int) -> None:
    store = Store(path)
    search = begin(store, examples(first, first + 5), examples(first + 5, first + 6))
    for number in range(10):
        head_set = HeadSet.parse(f"L0H{number}")
        store.add_outcomes(search, Part.DISCOVERY, outcomes(examples(first, first + 5), head_set, [True] * 5))


def test_processes_take_turns_without_a_lock_error(store):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_in_turn, args=(str(store.path), 100 * i)) for i in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        store.searches()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert [len(store.known(record.id, Part.DISCOVERY)) for record in store.searches()] == [10, 10, 10]


def test_patience_ends_with_the_remedy(tmp_path):
    path = tmp_path / "cel.duckdb"
    Store(path)
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(path), held, release))
    holder.start()
    assert held.wait(60)
    try:
        with pytest.raises(StoreError, match="held by another process for 0 s: close that one"):
            Store(path, patience_s=0.2)
    finally:
        release.set()
        holder.join()


def _hold(path: str, held, release) -> None:
    with duckdb.connect(path):
        held.set()
        release.wait(60)


def test_a_folder_without_write_permission_is_refused(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        (folder / "probe").touch()
    except PermissionError:
        with pytest.raises(StoreError, match="cannot be opened"):
            Store(folder / "cel.duckdb")
    else:
        pytest.skip("this user may write anywhere (root), so there is no folder to be refused")
