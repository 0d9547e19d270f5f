"""The command that serves the dashboard says in one line what a user has to mend."""

import socket
from pathlib import Path

import pytest

import app


def test_a_store_that_cannot_be_opened_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert app.main(["--store", str(tmp_path / "nowhere" / "cel.duckdb")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: store ") and said.count("\n") == 1 and "--store" in said


def test_a_port_in_use_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert app.main(["--store", str(tmp_path / "cel.duckdb"), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: port {port} ") and said.count("\n") == 1


def test_five_endpoints_are_offered_and_all_others_hidden(tmp_path: Path):
    path = tmp_path / "cel.duckdb"
    demo = app.build(app.Store(path), app.Worker(path))
    offered = demo.get_api_info()
    assert set(offered["named_endpoints"]) == {"/list", "/search_status", "/outcomes", "/flips", "/evaluate"}
    assert offered["unnamed_endpoints"] == {}


def test_mcp_without_its_extra_is_one_line_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app.importlib.util, "find_spec", lambda name: None)
    assert app.main(["--store", str(tmp_path / "cel.duckdb"), "--mcp"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --mcp needs ") and "pip install 'gradio[mcp]'" in said and said.count("\n") == 1
