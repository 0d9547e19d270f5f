"""Where a task's rows come from: a folder of JSONL or Parquet files, the hub, or the project's own samples.

1. `load_rows` with a folder reads ``boolq.jsonl``, ``hellaswag.jsonl``, ``mbpp.jsonl`` (each also as ``.parquet``, and with
   ``.train``, ``.validation``, ``.test`` or ``.prompt`` before the ending) or every file of ``arithmetic/``, in file order.
2. Without a folder, generated tasks are generated and the others come from the hub through `datasets`.
3. ``samples`` is the folder of small sets written for this project; arithmetic samples are generated.

Every row knows its file and line, so that a fault in it can be named.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet

from cel_core.errors import ConfigError, DataError
from cel_core.paths import typed_path
from cel_core.tasks.base import Example, Row, Task

SAMPLES = Path(__file__).resolve().parent.parent.parent / "data" / "samples"
_SPLIT_ORDER = ("", "train", "validation", "test", "prompt")
_ENDINGS = ("jsonl", "parquet")


def load_rows(task: Task, data: str | None, seed: int = 0) -> list[Row]:
    """All rows of a task, in file order.

    Args:
        task: the task.
        data: a folder, ``samples``, or None for the hub.
        seed: of the rows of tasks that are generated.

    Raises:
        DataError: there is no such folder or file, a line is not JSON, or the hub cannot be reached.
    """
    if task.hub is None and data not in (None, "samples"):
        raise DataError(f"task '{task.name}' makes its own rows and reads none from '{data}': leave the rows at their default")
    if task.hub is None or (data == "samples" and task.name == "arithmetic"):
        rows = task.generated_rows(seed)
    elif data is None:
        rows = list(_hub_rows(task))
    else:
        folder = SAMPLES if data == "samples" else typed_path(data)
        rows = [row for path, split in _files(task, folder) for row in _file_rows(path, split)]
    if not rows:
        raise DataError(f"{data or 'the hub'} holds no rows for task '{task.name}': give another folder with --data")
    return rows


def _files(task: Task, folder: Path) -> list[tuple[Path, str]]:
    """The files of a task with the split each name tells."""
    if not folder.is_dir():
        raise DataError(f"data folder '{folder}' does not exist: give a folder with --data, or '--data samples'")
    if task.name == "arithmetic":
        found = [(path, "") for ending in _ENDINGS for path in sorted((folder / "arithmetic").glob(f"*.{ending}"))]
        wanted = "arithmetic/*.jsonl"
    else:
        stem = task.name.split("-")[0]
        names = [(f"{stem}.{split}" if split else stem, split) for split in _SPLIT_ORDER]
        found = [
            (folder / f"{name}.{ending}", split)
            for name, split in names
            for ending in _ENDINGS
            if (folder / f"{name}.{ending}").is_file()
        ]
        wanted = f"{stem}.jsonl"
    if not found:
        raise DataError(f"data folder '{folder}' has no {wanted}: put the task's rows there, or leave out --data for the hub")
    return found


def _file_rows(path: Path, split: str) -> Iterator[Row]:
    try:
        if path.suffix == ".parquet":
            for number, fields in enumerate(pyarrow.parquet.read_table(path).to_pylist(), start=1):
                yield Row(fields, f"{path.name}:{number}", split)
            return
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield Row(_object(line, f"{path.name}:{number}"), f"{path.name}:{number}", split)
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read ({error}): check the file") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg}): write one JSON object a line") from error
    if not isinstance(fields, dict):
        raise DataError(f"{where}: a {type(fields).__name__}, not an object: write one JSON object a line")
    return fields


def _hub_rows(task: Task) -> Iterator[Row]:
    source = task.hub
    assert source is not None
    try:
        if source.data_files:
            for url in source.data_files:
                for number, fields in enumerate(datasets.load_dataset("json", data_files=url, split="train"), start=1):
                    yield Row(dict(fields), f"{url.rsplit('/', 1)[-1]}:{number}")
            return
        for split in source.splits:
            found = datasets.load_dataset(source.path, source.config, split=split)
            for number, fields in enumerate(found, start=1):
                yield Row(dict(fields), f"{source.path} {split}:{number}", split)
    except Exception as error:  # the hub client raises many kinds: no network, no such set, a changed layout
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise DataError(
            f"the hub's rows of '{task.name}' cannot be read ({reason}): give a folder with --data, or '--data samples'"
        ) from error


def read_examples(task: Task, data: str | None, seed: int = 0, kinds: tuple[str, ...] = ()) -> list[Example]:
    """A task's rows as examples, in file order; with `kinds`, those kinds only.

    Raises:
        DataError: as `load_rows`, or a row cannot be read.
        ConfigError: no row is of such a kind.
    """
    examples = task.examples(load_rows(task, data, seed))
    there = sorted({example.kind for example in examples} - {""})
    for kind in kinds:
        if kind not in there:
            raise ConfigError(
                f"kind '{kind}' is not among the rows: {'they have ' + ', '.join(there) if there else 'they have no kinds'}"
            )
    return [example for example in examples if not kinds or example.kind in kinds]
