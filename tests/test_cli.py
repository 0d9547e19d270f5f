"""The command line, run in this process on a tiny model saved to a folder."""

import json
import subprocess
import sys

import duckdb
import pytest
import transformers

from cel_core import experiment
from cel_core.cli import main
from cel_core.config import SearchConfig, is_demo
from cel_core.heads import all_heads
from cel_core.records import Status
from cel_core.store import Store
from tests.conftest import build_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A model folder as save_pretrained writes it."""
    path = tmp_path_factory.mktemp("model")
    model = build_tiny("llama")
    model.causal_lm.save_pretrained(path)
    model.tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> str:
    """Short rows of every choice task, one of them twice."""
    path = tmp_path_factory.mktemp("rows")
    boolq = [{"passage": f"{i} is a number", "question": f"is {i} odd", "label": bool(i % 2)} for i in range(9)]
    (path / "boolq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*boolq, boolq[0]]))
    endings = ["ends", "stops there", "goes on", "falls"]
    swag = [
        {"activity_label": "Run", "ctx_a": f"He runs {i}.", "ctx_b": "he", "endings": endings, "label": i % 4} for i in range(6)
    ]
    (path / "hellaswag.jsonl").write_text("".join(json.dumps(row) + "\n" for row in swag))
    return str(path)


@pytest.fixture
def run(capsys):
    """Run a command; its exit status, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(arguments)
        except SystemExit as leave:  # argparse
            status = int(leave.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_help_explains_every_command_with_examples():
    shown = subprocess.run([sys.executable, "-m", "cel_core", "--help"], capture_output=True, text=True, check=True).stdout
    for word in ("search", "sweep", "evaluate", "show", "examples:", "--task carry"):
        assert word in shown


def test_search_prints_one_object_and_show_lists_it(run, folder, rows, tmp_path):
    store = str(tmp_path / "cel.duckdb")
    status, out, err = run(
        *("search", "--model", folder, "--task", "boolq", "--data", rows, "--discovery", "4", "--held-out", "4"),
        *("--p", "3", "--k", "2", "--store", store, "--json"),
    )
    assert status == 0
    found = json.loads(out)
    assert found["status"] == "done"
    assert found["model"] == {
        "spec": folder,
        "family": "llama",
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "dtype": "float32",
        "device": found["model"]["device"],
    }
    assert (found["n_discovery"], found["n_held_out"], found["subsets_evaluated"], len(found["pool"])) == (4, 4, 6, 3)
    assert found["gain"] == pytest.approx((found["fixes"] - found["harms"]) / 4)
    assert found["ablated_accuracy"] - found["intact_accuracy"] == pytest.approx(found["gain"])
    assert found["beneficial"] == (found["discovery_gain"] > 0)
    assert set(found["pool"][0]) >= {"head", "gain", "fixes", "harms"}
    for field in ("search_id", "task", "relative_error_reduction", "mcnemar_p", "frozen_set", "duration_s"):
        assert field in found
    assert "held-out" in err

    status, out, _ = run("show", "--store", store, "--json")
    assert [one["search_id"] for one in json.loads(out)["searches"]] == [found["search_id"]]
    status, out, _ = run("show", found["search_id"], "--store", store)
    assert found["search_id"] in out and "exact McNemar p" in out
    assert json.loads(run("show", found["search_id"], "--store", store, "--json")[1]) == found


def test_sweep_counts_every_head_over_all_rows_and_repeats(run, folder, rows):
    status, out, _ = run("sweep", "--model", folder, "--task", "boolq", "--data", rows, "--json")
    found = json.loads(out)
    assert (status, found["n"]) == (0, 10)
    assert {head["head"] for head in found["heads"]} == set(map(str, all_heads(3, 4)))
    for head in found["heads"][:2]:
        _, out, _ = run("evaluate", "--model", folder, "--task", "boolq", "--data", rows, "--heads", head["head"], "--json")
        assert json.loads(out)["n_correct"] - found["intact_correct"] == head["fixes"] - head["harms"]
    assert json.loads(run("sweep", "--model", folder, "--task", "boolq", "--data", rows, "--limit", "3", "--json")[1])["n"] == 3


def test_evaluate_writes_one_line_an_example_in_file_order(run, folder, rows, tmp_path):
    path = tmp_path / "outcomes.jsonl"
    arguments = ("evaluate", "--model", folder, "--task", "hellaswag", "--data", rows, "--outcomes", str(path), "--json")
    status, out, _ = run(*arguments)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (status, [line["example"] for line in lines]) == (0, list(range(6)))
    assert all(len(line["logprobs_nats"]) == 4 and max(line["logprobs_nats"]) < 0 for line in lines)
    lengths = [len(ending) for ending in ("ends", "stops there", "goes on", "falls")]
    for number, line in enumerate(lines):
        per_character = [value / n for value, n in zip(line["logprobs_nats"], lengths, strict=True)]
        assert int(line["answer"]) == per_character.index(max(per_character))
        assert line["correct"] == (int(line["answer"]) == number % 4)
        gold = number % 4
        others = max(v for i, v in enumerate(per_character) if i != gold)
        assert line["margin_nats"] == pytest.approx(per_character[gold] - others, abs=1e-6)
    found = json.loads(out)
    assert found["acc_norm"] == found["accuracy"] == sum(line["correct"] for line in lines) / 6
    likeliest = [line["logprobs_nats"].index(max(line["logprobs_nats"])) for line in lines]
    assert found["acc"] == sum(answer == number % 4 for number, answer in enumerate(likeliest)) / 6


def test_a_store_without_searches_says_how_to_begin(run, tmp_path):
    status, out, _ = run("show", "--store", str(tmp_path / "cel.duckdb"))
    assert (status, out.startswith("no searches yet: begin with")) == (0, True)
    assert json.loads(run("show", "--store", str(tmp_path / "cel.duckdb"), "--json")[1]) == {"searches": []}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    """A BERT folder: it has a language-modelling class, and reads to the right."""
    path = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=300
    )
    transformers.BertLMHeadModel(config).save_pretrained(path)
    build_tiny("llama").tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def vision(tmp_path_factory) -> str:
    """A model that reads pictures."""
    path = tmp_path_factory.mktemp("vit")
    transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2).save_pretrained(path)
    return str(path)


USER_MISTAKES = {
    "unknown model": (["--model", "./nowhere"], "model './nowhere' is not a folder"),
    "unknown task": (["--task", "chess"], "task 'chess' is unknown"),
    "no such data": (["--data", "./nowhere"], "data folder 'nowhere' does not exist"),
    "empty discovery": (["--discovery", "0"], "--discovery 0: a search needs at least 1"),
    "k above p": (["--p", "2", "--k", "3"], "k = 3 is larger than p = 2"),
    "p above the heads": (["--p", "13"], "p = 13: the model has only 12 heads"),
    "encoder": (["--model", "ENCODER"], "model"),
    "pictures": (["--model", "VISION"], "is no causal language model (its type is 'vit')"),
    "store that cannot be written": (["--store", "./nowhere/cel.duckdb"], "its folder does not exist"),
    "unknown device": (["--device", "abacus"], "device 'abacus' is not available"),
    "code without permission": (["--task", "mbpp", "--data", "samples"], "allow it with --allow-code-execution"),
    "no template": (["--chat-template"], "no chat template: leave out --chat-template"),
    "unknown kind": (["--kinds", "2da"], "kind '2da' is not among the rows"),
}


@pytest.mark.parametrize("mistake", USER_MISTAKES)
def test_a_users_mistake_is_one_line_with_status_2(run, folder, rows, encoder, vision, tmp_path, mistake: str):
    changes, message = USER_MISTAKES[mistake]
    options = {"--model": folder, "--task": "boolq", "--data": rows, "--store": str(tmp_path / "cel.duckdb")}
    options |= {"--discovery": "4", "--held-out": "4", "--p": "3", "--k": "2"}
    flags = [change for change in changes if change == "--chat-template"]
    options |= dict(zip(changes[::2], changes[1::2], strict=True)) if not flags else {}
    options = {name: {"ENCODER": encoder, "VISION": vision}.get(value, value) for name, value in options.items()}
    status, out, err = run("search", *(part for option in options.items() for part in option), *flags)
    error = err.strip().splitlines()[-1]
    assert (status, out) == (2, "")
    assert error.startswith("error: ") and message in error
    assert "Traceback" not in err


def test_heads_out_of_range_and_misspelt_are_refused(run, folder, rows):
    arguments = ("evaluate", "--model", folder, "--task", "boolq", "--data", rows, "--heads")
    assert run(*arguments, "L9H0")[0] == 2
    status, _, err = run(*arguments, "L1")
    assert status == 2 and "'L1' is not a head" in err


def test_a_row_with_a_missing_field_is_named_with_its_line(run, folder, tmp_path):
    (tmp_path / "boolq.jsonl").write_text('{"passage": "p", "question": "q", "label": 1}\n{"passage": "p", "label": 1}\n')
    status, _, err = run("sweep", "--model", folder, "--task", "boolq", "--data", str(tmp_path))
    assert status == 2 and "error: boolq.jsonl:2: field 'question' is missing" in err


def test_a_newer_store_is_refused(run, tmp_path):
    store = Store(tmp_path / "cel.duckdb")
    with duckdb.connect(store.path) as database:
        database.execute("INSERT INTO schema_version VALUES (999)")
    status, _, err = run("show", "--store", str(store.path))
    assert status == 2 and "was written by a newer version" in err


def test_resuming_what_is_done_or_unknown_is_refused(run, tmp_path):
    status, _, err = run("search", "--resume", "zz", "--store", str(tmp_path / "cel.duckdb"))
    assert status == 2 and "there is no search 'zz'" in err


def test_the_demo_runs_once_beside_other_searches_of_the_demo_model(run, tmp_path, monkeypatch):
    store = Store(tmp_path / "cel.duckdb")
    started = []

    def start(config, there, report):
        started.append(config)
        search = there.create_search(config, {})
        there.end(search, Status.DONE, 1.0)
        return there.search(search)

    start(SearchConfig("demo", "carry", seed=1), store, None)
    start(SearchConfig("demo", "carry", shortlist=12), store, None)
    monkeypatch.setattr(experiment, "start", start)
    shown = [json.loads(run("demo", "--store", str(store.path), "--json")[1])["search_id"] for _ in range(2)]
    assert started[2:] == [SearchConfig("demo", "carry", full_sweep=True)] and is_demo(started[2])
    assert shown[0] == shown[1] and store.search(shown[0]).config == started[2]
