"""What is carried away from the pages: tables in both formats, the live head set in view, and whole searches."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from cel_core import bundle_reading
from cel_core.heads import INTACT, HeadSet
from cel_core.records import Part
from cel_core.store import Store
from cel_core.toy import populate
from pages import downloads, live_counts, toy_downloads, toy_question, toy_work

Searches = tuple[Store, dict[str, str]]


@pytest.fixture
def site(searches: Searches) -> TestClient:
    return TestClient(Starlette(routes=downloads.routes(searches[0])))


def frame(site: TestClient, address: str) -> pd.DataFrame:
    answer = site.get(address)
    assert answer.status_code == 200, answer.text
    return pd.read_parquet(io.BytesIO(answer.content)) if ".parquet" in address else pd.read_csv(io.StringIO(answer.text))


@pytest.mark.parametrize("state", ["done", "boolq", "large"])
@pytest.mark.parametrize("table", downloads.TABLES)
def test_a_table_is_the_same_in_both_formats(searches: Searches, site: TestClient, table: str, state: str):
    search = searches[1][state]
    csv, parquet = (frame(site, f"/tables/{search}/{table}.{ending}") for ending in downloads.FORMATS)
    assert len(csv) and list(csv) == list(parquet)
    for name in parquet:
        if parquet[name].dtype.kind in "biuf":
            np.testing.assert_allclose(csv[name].astype(float), parquet[name].astype(float), rtol=1e-6, err_msg=name)
        else:
            assert csv[name].fillna("").astype(str).tolist() == parquet[name].astype(str).tolist(), name
    assert {"bool"} == {str(parquet[name].dtype) for name in parquet if name.endswith(("_correct", "exact")) and name[0] != "n"}


def test_a_table_is_a_file_with_its_own_name(searches: Searches, site: TestClient):
    search = searches[1]["done"]
    for address, name in (
        ("singles.csv", "singles.csv"),
        ("held-out.parquet", "held-out.parquet"),
        ("discovery.csv?heads=L0H1,L1H0", "discovery-L0H1-L1H0.csv"),
        ("discovery.csv?heads=", "discovery-intact.csv"),
        ("discovery.csv?heads=L0H1,L0H2,L0H3,L0H4", "discovery-4-heads.csv"),
    ):
        answer = site.get(f"/tables/{search}/{address}")
        assert answer.headers["content-disposition"] == f'attachment; filename="cel-{search}-{name}"'
        assert answer.headers["content-type"] == downloads.FORMATS[name.rpartition(".")[2]].media_type


def test_the_live_head_set_comes_down_as_it_is_seen(searches: Searches, site: TestClient):
    store, ids = searches
    record = store.search(ids["done"])
    for part, head_set in (
        (Part.DISCOVERY, HeadSet.parse("L2H5")),
        (Part.HELD_OUT, record.frozen_set),
        (Part.HELD_OUT, INTACT),
    ):
        assert head_set is not None
        found = frame(site, f"/tables/{record.id}/{part}.parquet?heads={head_set}")
        paired = store.paired(record.id, part, head_set)
        assert len(found) == len(paired) == 40
        for name in ("key", "intact_answer", "ablated_answer", "intact_correct", "ablated_correct", "ablated_margin_nats"):
            assert found[name].tolist() == paired[name].tolist(), name
    shown = live_counts.strip({}, record, Part.HELD_OUT, HeadSet.parse("L2H5,L3H0"), 12, 40)
    assert shown.count(f'href="/tables/{record.id}/held-out.') == 2 and "heads=L2H5%2CL3H0" in shown
    assert "12 held-out examples" in shown
    assert "/tables/" not in live_counts.strip({}, record, Part.HELD_OUT, HeadSet.parse("L2H5"), 0, 40)  # nothing to carry


def test_without_heads_a_set_that_is_known_in_part_comes_down_in_part(searches: Searches, site: TestClient):
    found = frame(site, f"/tables/{searches[1]['running']}/discovery.csv?heads=L0H1")
    assert len(found) == 40
    assert len(frame(site, f"/tables/{searches[1]['running']}/discovery.csv?heads=L5H7")) == 0


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/tables/zzzzzz/singles.csv", "there is no search 'zzzzzz'"),
        ("/tables/{done}/passwd.csv", "there is no table 'passwd'"),
        ("/tables/{done}/singles.xlsx", "there is no format 'xlsx': choose csv or parquet"),
        ("/tables/{done}/discovery.csv?heads=L9H9", "L9H9 is not in this model"),
        ("/tables/{done}/discovery.csv?heads=%22%3Cb%3E", "is not a head"),
        ("/tables/{running}/discovery.csv", "has no frozen set yet"),
        ("/tables/{running}/held-out.parquet?heads=L0H1", "sealed until a head set is frozen"),
        ("/tables/{loading}/discovery.csv?heads=L0H1", "has no examples yet"),
        ("/bundles/zzzzzz.zip", "there is no search 'zzzzzz'"),
    ],
)
def test_what_cannot_be_had_is_one_line(searches: Searches, site: TestClient, address: str, said: str):
    answer = site.get(address.format(**searches[1]))
    assert answer.status_code == 404 and said in answer.text and "\n" not in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_search_comes_down_whole(searches: Searches, site: TestClient, tmp_path: Path):
    store, ids = searches
    for search in ids.values():
        answer = site.get(f"/bundles/{search}.zip")
        assert answer.headers["content-disposition"] == f'attachment; filename="cel-search-{search}.zip"'
        (tmp_path / "one.zip").write_bytes(answer.content)
        found, there = bundle_reading.read(tmp_path / "one.zip"), store.bundle(search)
        assert found.record == there.record and found.outcomes.equals(there.outcomes)


def test_tables_of_the_toy_page_come_down_in_both_formats(store: Store):
    site = TestClient(Starlette(routes=toy_downloads.routes(store)))
    query = "alpha=0.3&eta=0.1&seeds=200&seed=3"
    asked = toy_question.read(dict(pair.split("=") for pair in query.split("&")))
    run = frame(site, f"/tables/toy/run.parquet?{query}")
    pd.testing.assert_frame_equal(run, frame(site, f"/tables/toy/run.csv?{query}"), rtol=1e-9)
    assert "not computed yet" in site.get(f"/tables/toy/population.csv?{query}").text
    store.save_toy_summary(asked.population, populate(asked.population, asked.n_seeds).summary())
    assert toy_work.summary(store, asked) is not None
    csv, parquet = (frame(site, f"/tables/toy/population.{ending}?{query}") for ending in downloads.FORMATS)
    assert csv["quantity"].tolist() == parquet["quantity"].tolist()
    np.testing.assert_allclose(csv["value"].astype(float), parquet["value"].astype(float), rtol=1e-9)
