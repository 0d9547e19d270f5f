"""The made-up store of the dashboard's benchmark holds what the benchmark switches."""

from cel_core.heads import HeadSet
from cel_core.records import Part, Status
from cel_core.store import Store
from scripts import made_up_store
from scripts.made_up_store import Size


def test_a_walk_goes_from_none_off_to_none_off_through_sets_stored_on_both_sides(tmp_path):
    made_up_store.fill(tmp_path / "cel.duckdb", Size("made-up/large", "hellaswag", 3, 4, 12, 20, p=8, k=2), n_small=6)
    store = Store(tmp_path / "cel.duckdb")
    large, *small = store.searches()
    assert (large.config.model, large.status, large.held_out is not None) == ("made-up/large", Status.DONE, True)
    assert [record.status for record in small] == ["failed", "done", "stopped", "done", "done", "done"]
    walk = made_up_store.walk(store, large.id)
    before = HeadSet()
    for head, off in walk:
        assert set(before) ^ set(off) == {head}
        for part, n in ((Part.DISCOVERY, 12), (Part.HELD_OUT, 20)):
            assert len(store.judged(large.id, part, off)) == n
        before = off
    assert (before, len(walk), {len(off) for _, off in walk}) == (HeadSet(), 14, {0, 1, 2})
