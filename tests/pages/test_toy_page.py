"""The toy page: what an address asks, what the figures hold, how jobs end, and all of it in a real Chromium."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from cel_core.config import SearchConfig
from cel_core.errors import ToyError
from cel_core.heads import HeadSet
from cel_core.records import HeldOut, Status
from cel_core.store import Store
from cel_core.toy import Axis, Beyond, ScalePoint, ToyConfig, in_event, populate, predicted_effects, run
from pages import toy, toy_downloads, toy_figures, toy_panels, toy_parts, toy_question, toy_words, toy_work
from pages.toy_jobs import MAX_WAITING, Desk, Job, Stopped
from tests.pages.conftest import served
from tests.pages.test_browser import Visit, no_sideways_scroll

QUICK = {"alpha": "0.3", "eta": "0.1", "seeds": "200", "seed": "3"}  # 134 steps to the checkpoint


def until(true: Callable[[], object], patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


# --- addresses


def test_an_empty_address_asks_the_paper_s_model():
    asked = toy_question.read({})
    assert asked.config == ToyConfig(seed=3, steps=2 * ToyConfig().checkpoint)
    assert asked.population == ToyConfig(seed=0) and asked.n_seeds == 4000
    assert asked.settled == ToyConfig(seed=0, steps="converged")
    assert (asked.x, asked.y) == (Axis("alpha", (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)), Axis("heads", (2, 3, 4, 6, 8)))


def test_an_address_carries_every_setting():
    asked = toy_question.read(
        {
            "a": "3",
            "alpha": "0.2",
            "heads": "4",
            "seed": "7",
            "steps": "500",
            "adam": "1",
            "batch": "8",
            "weight": "0.3",
            "tasks": "3",
        }
        | {"x": "eta", "xs": "0.1, 0.2,0.2", "y": "b", "show": "gain", "deleted": "2", "scale": "log", "run": "of another page"}
    )
    beyond = Beyond(optimizer="adam", batch_size=8, n_tasks=3, task_weights=(0.3, 0.35, 0.35))
    assert asked.config == ToyConfig(a=3, alpha=0.2, heads=4, seed=7, steps=500, beyond=beyond)
    assert asked.x == Axis("eta", (0.1, 0.2)) and asked.measure == "gain" and asked.deleted == 2 and asked.logarithmic
    assert asked.mapped.steps == "checkpoint"  # sampled batches never settle


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"alpha": "nan"}, "alpha nan is not a finite number"),
        ({"alpha": "0"}, "alpha 0 is not above 0"),
        ({"alpha": "-1"}, "alpha -1 is not above 0"),
        ({"alpha": "<b>"}, "alpha '<b>' is not a number"),
        ({"eta": "30"}, "eta 30 oscillates or diverges"),
        ({"eta": "inf"}, "eta inf is not a finite number"),
        ({"heads": "2.5"}, "heads '2.5' is not a whole number"),
        ({"heads": "65"}, "heads 65 is not between"),
        ({"seed": "-1"}, "seed -1 is not between"),
        ({"steps": "0"}, "steps 0 is not between"),
        ({"deleted": "3"}, "head 3 is not in this model"),
        ({"seeds": "0"}, "seeds 0 is not between"),
        ({"weight": "1"}, "weight 1 is no share"),
        ({"weight": "0.5", "tasks": "0"}, "n_tasks 0 is not between"),
        ({"noise": "1"}, "label_noise 1 averages out"),
        ({"x": "voodoo"}, "'voodoo' is no setting"),
        ({"xs": "inf"}, "alpha on the map has a value that is not finite"),
        ({"xs": ",".join(map(str, range(99)))}, "cells are more than"),
        ({"show": "x"}, "show 'x' is nothing"),
        ({"method": "magic"}, "method 'magic' is unknown"),
    ],
)
def test_a_bad_address_is_told_in_one_line(query: dict[str, str], said: str, store: Store):
    with pytest.raises(ToyError) as told:
        toy_question.read(query)
    assert str(told.value).startswith(said) or said in str(told.value)
    assert "\n" not in str(told.value) and ": " in str(told.value)


# --- figures and sentences


@pytest.fixture(scope="module")
def on_event() -> Any:
    found = run(ToyConfig(alpha=0.2, seed=3, steps="converged"))
    assert in_event(found.winners) and found.converged
    return found


def test_curves_hold_every_head_and_the_checkpoint(on_event: Any):
    spec = toy_figures.coefficients(on_event, 0, logarithmic=False).to_dict()
    last = spec["datasets"]["lines"][-1]
    winner = int(on_event.winners[0])
    assert set(last) == {"step", "head 0", "head 1", "head 2"} and last[f"head {winner}"] == pytest.approx(1, abs=1e-3)
    assert spec["datasets"]["checkpoint"] == [{"step": on_event.config.checkpoint, "name": "checkpoint"}]
    titles = {layer["encoding"]["x"]["title"] for layer in spec["layer"] if "title" in layer["encoding"].get("x", {})}
    assert titles == {"Gradient-descent step"}


def test_a_logarithmic_curve_is_positive_and_marks_the_race(on_event: Any):
    spec = toy_figures.coefficients(on_event, 1, logarithmic=True).to_dict()
    assert min(row[f"head {head}"] for row in spec["datasets"]["lines"] for head in range(3)) >= 1e-8
    assert [level["at"] for level in spec["datasets"]["levels"]] == [1.0, 0.01]


def test_no_data_set_of_a_figure_is_empty():
    """Vega complains in the console about data without a row."""
    before_checkpoint = run(ToyConfig(steps=10))
    for figure in (toy_figures.coefficients(before_checkpoint, 0, True), toy_figures.risks(before_checkpoint, None)):
        spec = figure.to_dict()
        used = {each["data"]["name"] for each in (spec, *spec["layer"]) if "data" in each}
        assert "lines" in used
        assert all(spec["datasets"][name] for name in used)


def test_risks_without_a_head_are_the_engine_s(on_event: Any):
    winner = int(on_event.winners[0])
    rows = toy_figures.risks(on_event, winner).to_dict()["datasets"]["without"]
    last = {row["of"]: row["risk"] for row in rows}
    assert last["A"] == pytest.approx(0, abs=1e-3) and last["B"] == pytest.approx(4, abs=1e-2)


def test_deletion_sets_the_theorem_beside_the_measured_change(on_event: Any):
    winner = int(on_event.winners[0])
    asked = toy_question.read({"alpha": "0.2", "steps": "converged"})
    drawn = toy_panels.deletion(asked, on_event, winner)
    measured, theorem = drawn.split("Change, measured")[1].split("Change, theorem on E")
    for text in ("−1.000", "+3.000", "+0.500"):
        assert text in theorem
    assert "−1.000" in measured and "+2.99" in measured or "+3.00" in measured
    assert drawn.count('aria-pressed="true"') == 1 and "t² = 1" in drawn
    assert "another one" in toy_panels.deletion(asked, on_event, (winner + 1) % 3)


def test_population_and_gains_show_measured_beside_predicted():
    asked = toy_question.read(QUICK)
    found = populate(asked.population, 200).summary()
    drawn = toy_panels.population(asked, found)
    assert "= 44.4 %" in drawn and f"{100 * found.pr_event:.1f}" in drawn and "standard error" in drawn
    rows = toy_figures.gains(found).to_dict()
    (data,) = [values for values in rows["datasets"].values() if values and "predicted" in values[0]]
    assert [row["predicted"] for row in data] == [1.0, 3.0, 0.5]
    table = toy_downloads.summary_frame(asked, found).set_index("quantity")
    assert table.loc["pr_event", "value"] == found.pr_event and table.loc["task_b_rise_median", "predicted"] == 3


def test_scaling_draws_a_line_of_slope_four():
    points = [ScalePoint(alpha, 100, 0.4 * alpha**4, None, None, 1.0) for alpha in (0.05, 0.1, 0.2)]
    spec = toy_figures.scaling(points).to_dict()
    (line,) = [values for values in spec["datasets"].values() if len(values) == 2]
    rise = line[1]["loser_median"] / line[0]["loser_median"]
    assert rise == pytest.approx((line[1]["alpha"] / line[0]["alpha"]) ** 4)
    assert "Fitted slope: 4.00" in toy_words.scaling_says(points, None)
    assert toy_figures.scaling([]) is None


def test_numbers_too_small_or_too_large_become_powers_of_ten():
    assert toy_words.value(0.0000123) == "1.2·10⁻⁵" and toy_words.value(2.8e6) == "2.8·10⁶"
    assert toy_words.value(-1) == "−1.000" and toy_words.value(0) == "0.000" and toy_words.signed(3) == "+3.000"


def test_a_diverged_run_is_told_and_has_no_winners():
    found = run(ToyConfig(alpha=0.5, eta=0.5, steps=2000, seed=3, beyond=Beyond(init_scale=40)))
    assert found.diverged
    assert "diverged" in toy_panels.diverged(found) and "no winners" in toy_words.run_says(found)
    assert "nan" not in str(toy_figures.coefficients(found, 0, False).to_dict()).lower()


def test_switches_outside_the_theorems_are_labelled(store: Store):
    parts = toy_parts.parts_of(store, toy_question.read(QUICK | {"adam": "1"}), 0)
    assert "Outside the theorems: Adam" in parts["state"][1]()
    assert "Outside" not in toy_parts.parts_of(store, toy_question.read(QUICK), 0)["state"][1]()


# --- jobs


def test_a_job_is_the_same_for_whoever_asks_and_stops_when_asked():
    desk, go = Desk(), []

    def work(job: Job) -> None:
        while True:
            job.rows.append(1)
            job.report(0.5)
            time.sleep(0.001)
            go.append(1)

    first = desk.start(work, "map", "k")
    until(lambda: go)
    assert desk.start(work, "map", "k") is first and desk.get("map", "k") is first
    desk.stop("map", "k")
    until(lambda: first.ended)
    assert first.stopped and not first.done and first.rows and first.left_s is None
    assert desk.start(lambda job: None, "map", "k") is not first


def test_a_job_s_problem_is_one_line_and_others_wait_their_turn():
    desk, release = Desk(max_running=1), []

    def wait(job: Job) -> None:
        until(lambda: release)

    def fail(job: Job) -> None:
        raise ToyError("alpha 2 is too large: choose less")

    desk.start(wait, "a")
    until(lambda: desk.get("a").began_s is not None)
    behind = desk.start(fail, "b")
    assert behind.began_s is None and not behind.ended
    for number in range(MAX_WAITING - 1):
        desk.start(wait, "more", str(number))
    with pytest.raises(ToyError, match="under way"):
        desk.start(wait, "one too many")
    release.append(1)
    until(lambda: behind.ended)
    assert behind.problem == "alpha 2 is too large: choose less"


SETTLING = ToyConfig(alpha=0.3, eta=0.1, steps="converged")
ENDLESS = ("map", SETTLING, Axis("alpha", (0.5, 0.01)), Axis("heads", (3,)), 5000, (1.0, 9.0))
"""A map whose first cell takes a second, and the second a quarter of an hour."""


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_process_computes_and_a_stop_ends_it_at_once():
    desk = Desk()
    job = desk.start(lambda job: job.compute(*ENDLESS), "map")
    until(lambda: job.rows)
    assert job.process is not None and job.process.pid != os.getpid()
    assert psutil.Process(job.process.pid).nice() > psutil.Process().nice()
    until(lambda: job.share == 0.1)
    desk.stop("map")
    until(lambda: job.ended)
    assert job.stopped and len(job.rows) == 1 and gone(job.process.pid)


def test_a_process_that_dies_is_a_job_that_failed_with_a_reason():
    desk, asked = Desk(), toy_question.read(QUICK)
    job = desk.start(lambda job: job.compute(*ENDLESS), "map")
    until(lambda: job.rows)
    assert job.process is not None
    os.kill(job.process.pid, signal.SIGKILL)
    until(lambda: job.ended)
    assert job.problem.startswith("the computation's process ended too soon (status -9): begin it again")
    drawn = toy_panels.job_bar("map", job, False, "Compute the map", asked)
    assert "ended too soon" in drawn and "Compute the map" in drawn


def test_settings_that_make_no_model_are_the_job_s_problem():
    desk = Desk()
    job = desk.start(lambda job: job.compute("map", SETTLING, *(2 * [Axis("eta", (0.1,))]), 20, (1.0,)), "map")
    until(lambda: job.ended)
    assert job.problem == "eta cannot be both sides of the map: choose another second setting" and not job.rows


def test_a_process_ends_with_the_dashboard():
    dashboard = """
import time
from cel_core.toy import ToyConfig
from pages.toy_jobs import DESK
config = ToyConfig(alpha=0.01, steps="converged")
job = DESK.start(lambda job: job.compute("population", config, 5000), "population")
while not job.share:
    time.sleep(0.01)
print(job.process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", dashboard], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not gone(pid)
        process.kill()
    until(lambda: gone(pid))


def test_report_raises_once_stopping():
    job = Job(("x",), stopping=True)
    with pytest.raises(Stopped):
        job.report(0.1)


def test_population_scaling_and_map_come_from_jobs_and_what_can_be_kept_is_kept(store: Store):
    asked = toy_question.read(QUICK | {"xs": "0.3,0.5", "ys": "2,99", "n": "20"})
    for kind in toy_parts.JOBS:
        toy.perform(store, asked, kind)
    until(lambda: all(toy_work.job_of(kind, asked).ended for kind in toy_parts.JOBS))
    assert [toy_work.job_of(kind, asked).problem for kind in toy_parts.JOBS] == [""] * 3
    kept = store.toy_summary(asked.population, 200)
    assert kept is not None and kept.n_seeds == 200 and kept.loser_order == pytest.approx(4, abs=0.5)
    cells = toy_work.cells(asked)
    assert [(cell.x, cell.y) for cell in cells] == [(0.3, 2), (0.5, 2), (0.3, 99), (0.5, 99)]
    drawn = toy_panels.phase_map(asked, cells)
    assert drawn.count("×") == 2 and "worth removing" in drawn
    for table, n_rows in (("map", 4), ("scaling", len(toy_work.scales(asked)))):
        assert len(toy_downloads.frame_of(store, asked, table)) == n_rows


def test_a_run_is_kept_and_downloaded(store: Store):
    asked = toy_question.read(QUICK | {"seed": "11"})
    found = toy_work.trajectory(store, asked)
    assert found is not None and store.toy_run(asked.config) is not None
    frame = toy_downloads.frame_of(store, asked, "run")
    assert len(frame) == len(found.steps) and {"U_head0", "risk_a", "risk_b_without2"} <= set(frame)
    with pytest.raises(ToyError, match="no table"):
        toy_downloads.frame_of(store, asked, "secrets")


def test_a_run_too_long_to_wait_for_is_refused_with_a_remedy(store: Store):
    with pytest.raises(ToyError, match="gradient flow"):
        toy_work.trajectory(store, toy_question.read({"steps": "19000000", "alpha": "0.01"}))


def test_theorem_of_other_weights_is_its_own():
    config = ToyConfig(beyond=Beyond(task_weights=(3.0, 1.0)))
    assert config.optimum[0] == pytest.approx(0.5)
    assert float(predicted_effects(config).task_a_drop) == pytest.approx(0.25)


# --- the demo model's search


def record(task: str, heads: str, intact: int, ablated: int, fixes: int, harms: int, **more: Any) -> Any:
    held = HeldOut(600, intact, ablated, fixes, harms)
    config = SearchConfig("demo", task)
    return SimpleNamespace(
        id="abc123", config=config, status=Status.DONE, held_out=held, frozen_set=HeadSet.parse(heads), **more
    )


def test_the_demo_search_is_linked_with_what_the_other_task_pays():
    one, other = record("carry", "L1H1,L2H2", 308, 501, 220, 27), record("no-carry", "L1H1,L2H2", 298, 92, 15, 221)
    drawn = toy_panels.demo([other, one])
    assert "51.3 → 83.5" in drawn and "49.7 → 15.3" in drawn and 'href="/search?run=abc123"' in drawn
    alone = toy_panels.demo([one])
    assert "--task no-carry --heads L1H1,L2H2" in alone
    assert "python -m cel_core demo" in toy_panels.demo([])


# --- in a browser


@pytest.fixture(scope="module")
def toy_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from served(Store(tmp_path_factory.mktemp("toy") / "cel.duckdb"))


@pytest.fixture(params=["light", "dark"])
def visit(request: pytest.FixtureRequest, chromium: Browser, toy_site: str) -> Iterator[Visit]:
    found = Visit(chromium, toy_site, request.param)
    yield found
    found.context.close()
    assert found.complaints == []


def test_a_visitor_deletes_heads_looks_at_many_seeds_maps_and_stops(visit: Visit, chromium: Browser):
    page = visit.open("/toy?alpha=0.2&eta=0.1&seeds=1000&seed=3")
    chosen = page.locator("table[data-table=risks] tr.sel")
    expect(chosen).to_contain_text("Without head 2")
    expect(page.locator(".curves svg:visible")).to_have_count(3)
    page.get_by_role("button", name="Delete head 0").click()
    expect(chosen).to_contain_text("Without head 0")
    assert "deleted=0" in page.url
    page.get_by_role("button", name="Delete head 0").click()
    expect(chosen).to_have_count(0)
    page.get_by_role("button", name="Logarithmic").click()
    expect(page.get_by_role("button", name="Logarithmic")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="New seed").click()
    seed = page.locator("[data-field=seed]").input_value()
    expect(page.locator(".head .sub")).to_contain_text(f"Seed {seed}.")
    expect(page.locator("table[data-table=winners] tbody tr")).to_have_count(3)
    expect(page.locator(".v", has_text="%").first).to_contain_text("44.4 %")
    page.get_by_role("textbox", name="Number of heads, M").fill("4")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Two tasks, four heads, one conflict")
    assert no_sideways_scroll(page)
    second = Visit(chromium, visit.address, "dark")
    elsewhere = second.open(page.url.removeprefix(visit.address))
    expect(elsewhere.locator("h1")).to_have_text("Two tasks, four heads, one conflict")
    expect(elsewhere.locator(".head .sub")).to_contain_text(f"Seed {seed}.")
    second.context.close()
    assert second.complaints == []


def slide(page: Page, *values: int) -> None:
    """Move the seed's slider, without waiting for an answer."""
    move = "v => { e.value = v; for (const n of ['input', 'change']) e.dispatchEvent(new Event(n, {bubbles: true})); }"
    for value in values:
        page.locator("input[type=range][data-for=seed]").evaluate_all(f"([e], value) => ({move})(value)", value)


def test_of_quick_changes_the_last_is_drawn(chromium: Browser, toy_site: str):
    visit = Visit(chromium, toy_site, "light")
    page = visit.open("/toy?alpha=0.2&eta=0.1&seeds=200&seed=3&xs=0.3&ys=2&n=20")
    expect(page.locator(".curves svg:visible")).to_have_count(3)
    names = ["Delete head 0", "Compute the map", "Delete head 1", "Logarithmic", "Linear", "Delete head 0", "Logarithmic"]
    click = "(all, names) => names.forEach((name) => all.find((b) => b.innerText.trim() === name).click())"
    page.locator("button").evaluate_all(click, names)
    slide(page, *range(20, 26))
    expect(page.locator(".head .sub")).to_contain_text("Seed 25.")
    expect(page.locator("table[data-table=risks] tr.sel")).to_contain_text("Without head 0")
    expect(page.get_by_role("button", name="Logarithmic")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".pcell:not(.none)")).to_have_count(1)  # what was asked for between other changes is done as well
    assert page.locator("[data-field=seed]").input_value() == "25"
    visit.context.close()
    assert visit.complaints == []


def test_an_answer_that_is_lost_is_asked_for_again_and_overwrites_nothing(chromium: Browser, toy_site: str):
    visit, held = Visit(chromium, toy_site, "light"), list[Route]()
    page = visit.page
    page.clock.install()
    visit.open("/toy?alpha=0.2&eta=0.1&seeds=200&seed=3")
    page.route(re.compile("/run/predict"), lambda route: route.continue_() if held else held.append(route))
    slide(page, 30)
    until(lambda: page.wait_for_timeout(50) or held)
    slide(page, 31, 32)
    page.clock.fast_forward(16_000)
    expect(page.locator(".head .sub")).to_contain_text("Seed 32.")
    held[0].continue_()
    late = held[0].request.response()
    assert late is not None and late.ok and "Seed" not in late.text()
    slide(page, 33)
    expect(page.locator(".head .sub")).to_contain_text("Seed 33.")
    visit.context.close()
    assert visit.complaints == []


def test_a_map_fills_in_survives_a_reload_and_stops(chromium: Browser, toy_site: str):
    visit = Visit(chromium, toy_site, "light")
    page = visit.open("/toy?alpha=0.3&eta=0.1&seeds=200&xs=0.3,0.2,0.1,0.06,0.04,0.03&ys=2,3,4,5,6&n=300")
    page.get_by_role("button", name="Compute the map").click()
    expect(page.locator(".pcell:not(.none)").first).to_be_visible()
    page.reload()
    expect(page.locator(".pcell:not(.none)").first).to_be_visible()
    page.locator("button[data-act='stop map']").click()
    expect(page.locator(".job", has_text="Stopped at")).to_be_visible()
    page.get_by_role("button", name="Gain", exact=True).click()
    expect(page.get_by_role("button", name="Gain", exact=True)).to_have_attribute("aria-pressed", "true")
    assert 0 < page.locator(".pcell:not(.none)").count() < 30
    visit.context.close()
    assert visit.complaints == []


def test_a_bad_address_can_be_mended_in_its_form(chromium: Browser, toy_site: str):
    visit = Visit(chromium, toy_site, "light")
    page = visit.open("/toy?alpha=nan&eta=0.1&seed=5&seeds=200")
    expect(page.locator(".notice.bad")).to_contain_text("not a finite number")
    expect(page.locator(".curves")).to_be_hidden()
    page.locator("#toy-alpha").fill("0.3")
    page.keyboard.press("Enter")
    expect(page.locator(".notice.bad")).to_have_count(0)
    expect(page.locator(".curves svg:visible")).to_have_count(3)
    for hostile in ("eta=30", "deleted=9", "alpha=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", "xs=%00"):
        page = visit.open(f"/toy?{hostile}")
        expect(page.locator(".notice.bad")).to_be_visible()
    visit.context.close()
    assert visit.complaints == []


def test_tables_of_the_toy_page_come_down_as_csv(chromium: Browser, toy_site: str):
    visit = Visit(chromium, toy_site, "light")
    page = visit.open("/toy?alpha=0.3&eta=0.1&seeds=200&seed=5")
    with page.expect_download() as waiting:
        page.locator("a.csv[href*='/tables/toy/run.csv']").first.click()
    assert Path(waiting.value.path()).read_text().startswith("step,U_head0,U_head1,U_head2,V_head0")
    answer = page.request.get(f"{visit.address}/tables/toy/run.csv?alpha=0")
    assert answer.status == 404 and "alpha 0 is not above 0" in answer.text()
    visit.context.close()
    assert visit.complaints == []
