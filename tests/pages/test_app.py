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


def test_no_endpoint_is_offered_unnamed(tmp_path: Path):
    demo = app.build(app.Store(tmp_path / "cel.duckdb"))
    assert demo.get_api_info()["named_endpoints"] == demo.get_api_info()["unnamed_endpoints"] == {}
