"""Imports go one way: app -> pages -> cel_core; the tensor libraries, the database and the widgets each have one place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def imported(path: Path) -> set[str]:
    """Names of all modules a file imports, at the top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


CORE = sorted((ROOT / "cel_core").rglob("*.py"))
PAGES = sorted((ROOT / "pages").rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", CORE, ids=name)
def test_the_core_knows_no_page_and_no_widget(path: Path):
    assert not packages(path) & {"gradio", "altair", "pages", "app"}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_pages_touch_no_tensor_and_no_database(path: Path):
    assert not packages(path) & {"torch", "transformers", "duckdb", "datasets", "app"}


def test_only_one_module_imports_duckdb():
    assert [name(path) for path in CORE if "duckdb" in packages(path)] == ["cel_core/database.py"]


def test_the_search_knows_no_tensor_no_file_and_no_table():
    assert packages(ROOT / "cel_core" / "search.py") <= {"collections", "itertools", "math", "typing", "numpy", "cel_core"}


def test_tensors_live_in_one_row_of_modules():
    with_torch = {name(path) for path in CORE if "torch" in packages(path)}
    assert with_torch <= {
        f"cel_core/{one}.py"
        for one in ("models", "ablation", "layers", "engine", "generation", "attribution", "estimate", "bench", "toy/attention")
    }


def test_reading_a_store_loads_no_tensor_library():
    """The dashboard's first paint must not wait for torch."""
    seen: set[Path] = set()
    waiting = [ROOT / "cel_core" / "store.py"]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        assert not packages(path) & {"torch", "transformers", "datasets"}, name(path)
        for module in imported(path):
            if module.startswith("cel_core"):
                base = ROOT.joinpath(*module.split("."))
                waiting += [found for found in (base.with_suffix(".py"), base / "__init__.py") if found.is_file()]
