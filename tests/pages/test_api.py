"""The endpoints for scripts and agents: ``gradio_client`` and the MCP client call every one on a running dashboard."""

import asyncio
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from cel_core.records import Part
from cel_core.store import Store
from cel_core.worker import Worker
from tests.pages.conftest import free_port

Searches = tuple[Store, dict[str, str]]
TOOLS = {
    "list_searches": [],
    "search_status": ["search"],
    "outcomes": ["search", "heads", "part", "limit", "offset"],
    "flips": ["search", "heads", "part", "limit", "offset"],
    "evaluate": ["search", "heads", "part", "wait_s"],
}


def require_mcp() -> None:
    if importlib.util.find_spec("mcp") is None:
        reason = "no MCP: pip install -r requirements-dev.txt"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest.fixture(scope="module")
def address(searches: Searches) -> Iterator[str]:
    """The dashboard with its tools, on the made-up searches; its worker was never started."""
    require_mcp()
    import app  # noqa: PLC0415  Gradio takes seconds to import, and most tests do without

    worker = Worker(searches[0].path)
    demo = app.build(searches[0], worker)
    yield app.launch(demo, searches[0], worker, free_port(), mcp=True).rstrip("/")
    demo.close()


def agent(address: str, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The tools an agent finds, and what its calls give: each a text and whether it is an error."""
    from mcp import ClientSession  # noqa: PLC0415  an extra, which may be missing
    from mcp.client.streamable_http import streamablehttp_client  # noqa: PLC0415

    async def talk() -> tuple[list[Any], list[Any]]:
        async with streamablehttp_client(f"{address}/gradio_api/mcp/") as (read, write, _):
            async with ClientSession(read, write) as session:
                await session.initialize()
                tools = (await session.list_tools()).tools
                answers = [await session.call_tool(name, arguments) for name, arguments in calls]
                return tools, [(answer.content[0].text, answer.isError) for answer in answers]  # type: ignore[union-attr]

    return asyncio.run(talk())


def test_an_agent_finds_the_five_tools_and_reads_what_each_takes(address: str):
    tools, _ = agent(address)
    assert {tool.name: list(tool.inputSchema["properties"]) for tool in tools} == TOOLS
    for tool in tools:
        assert tool.description and "Args" not in tool.description and "\n" not in tool.description
        for name, schema in tool.inputSchema["properties"].items():
            assert len(schema["description"]) > 10, f"{tool.name}.{name} is not described"
            assert schema.get("type") or schema["enum"] == list(Part)
    required = {tool.name: tool.inputSchema.get("required", []) for tool in tools}
    assert required["flips"] == ["search"] and required["evaluate"] == ["search", "heads"]


def test_every_tool_answers_an_agent_as_every_endpoint_answers_a_script(address: str, searches: Searches):
    store, ids = searches
    record = store.search(ids["done"])
    assert record.frozen_set is not None and record.held_out is not None
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("list_searches", "/list", {}),
        ("search_status", "/search_status", {"search": ids["running"]}),
        ("outcomes", "/outcomes", {"search": ids["boolq"], "limit": 7, "offset": 2}),
        ("flips", "/flips", {"search": record.id}),
        ("evaluate", "/evaluate", {"search": record.id, "heads": str(record.frozen_set), "part": "held-out"}),
    ]
    client = Client(address, verbose=False)
    _, answers = agent(address, *((tool, arguments) for tool, _, arguments in calls))
    for (tool, endpoint, arguments), (text, is_error) in zip(calls, answers, strict=True):
        assert not is_error and json.loads(text) == client.predict(**arguments, api_name=endpoint), tool
    listed, status, rows, flips, found = (json.loads(text) for text, _ in answers)
    assert [each["search_id"] for each in listed] == [each.id for each in store.searches()]
    assert (status["status"], status["done"], status["total"]) == ("running", 1000, 1960)
    assert [row["position"] for row in rows] == list(range(2, 9)) and {row["gold"] for row in rows} <= {"yes", "no"}
    assert [row["flip"] for row in flips].count("fix") == record.held_out.fixes
    assert (found["n"], found["fixes"], found["harms"], found["gain"]) == (
        record.held_out.n,
        record.held_out.fixes,
        record.held_out.harms,
        record.held_out.gain,
    )


def test_the_calls_of_the_documentation_give_what_it_shows(address: str, searches: Searches):
    record = searches[0].search(searches[1]["done"])
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    text = text.replace("352de3", record.id).replace('"L1H1,L2H2", part', f'"{record.frozen_set}", part')
    shown = re.findall(r"## (/\w+)\n.*?```python\n(.*?)```\n```json\n(.*?)```", text, re.DOTALL)
    assert [endpoint for endpoint, _, _ in shown] == ["/list", "/search_status", "/outcomes", "/flips", "/evaluate"]
    for endpoint, call, answer in shown:
        found = eval(call, {"cel": Client(address, verbose=False)})
        printed = json.loads(answer)
        one, other = (each[0] if isinstance(each, list) else each for each in (found, printed))
        assert set(other) <= set(one) and f'"{endpoint}"' in call
        assert set(other.get("model", {})) <= set(one.get("model", {}))
    for tool in TOOLS:
        assert f"`{tool}`" in text


REFUSED = [
    ("search_status", "/search_status", {"search": "zzzzzz"}, "there is no search 'zzzzzz'"),
    ("evaluate", "/evaluate", {"search": "{done}", "heads": "L9H9"}, "L9H9 is not in this model"),
    ("evaluate", "/evaluate", {"search": "{done}", "heads": "<b>"}, "'<b>' is not a head"),
    ("outcomes", "/outcomes", {"search": "{running}", "part": "held-out"}, "its held-out examples are sealed"),
    ("outcomes", "/outcomes", {"search": "{loading}"}, "has no examples yet"),
    ("outcomes", "/outcomes", {"search": "{done}", "limit": -1}, "limit = -1 is not a whole number"),
    ("flips", "/flips", {"search": "{done}", "heads": "L0H0,L0H1"}, "0 of 40 held-out examples are stored"),
    ("flips", "/flips", {"search": "{running}", "part": "discovery"}, "has no frozen set yet: name the heads"),
    ("evaluate", "/evaluate", {"search": "{done}", "heads": "L0H0,L0H1", "wait_s": 0}, "the worker is not running"),
]


def test_what_cannot_be_answered_is_one_line_for_both(address: str, searches: Searches):
    client, ids = Client(address, verbose=False), searches[1]
    asked = [{key: str(v).format(**ids) if key == "search" else v for key, v in case[2].items()} for case in REFUSED]
    _, answers = agent(address, *((case[0], arguments) for case, arguments in zip(REFUSED, asked, strict=True)))
    for (_, endpoint, _, said), arguments, (text, is_error) in zip(REFUSED, asked, answers, strict=True):
        assert is_error and said in text and "\n" not in text
        with pytest.raises(AppError) as refused:
            client.predict(**arguments, api_name=endpoint)
        assert str(refused.value) == text


@pytest.mark.parametrize(
    ("endpoint", "arguments", "said"),
    [
        ("/search_status", (5,), "search = 5 is not a text"),
        ("/outcomes", ("{done}", None), "heads = None is not a text"),
        ("/outcomes", ("{done}", "", "both"), "'both' is no side of a search"),
        ("/outcomes", ("{done}", "", "discovery", 1.5), "limit = 1.5 is not a whole number"),
        ("/evaluate", ("{done}", "L0H0", "discovery", "soon"), "wait_s = soon is not a number"),
        ("/evaluate", ("{done}", "L0H0", "discovery", True), "wait_s = True is not a number"),
    ],
)
def test_arguments_of_another_type_are_said(address: str, searches: Searches, endpoint: str, arguments: Any, said: str):
    given = [each.format(**searches[1]) if isinstance(each, str) else each for each in arguments]
    with pytest.raises(AppError, match=said):
        Client(address, verbose=False).predict(*given, api_name=endpoint)
