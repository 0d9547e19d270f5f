"""What a task is: rows in a benchmark's own fields become examples, and an example says what is read and what is right.

A benchmark is one file beside this one, holding one `Task`. Three ways of scoring cover them all:

* ``greedy``: right when every token of the one continuation is the model's own next token;
* ``choice``: right when the gold continuation has the largest log-probability, or the largest per character of the choice;
* ``program``: right when the generated program passes its tests.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from cel_core.errors import DataError


class Scoring(StrEnum):
    """How an example's answer is judged."""

    GREEDY = "greedy"
    CHOICE = "choice"
    CHOICE_PER_CHARACTER = "choice per character"
    PROGRAM = "program"


class Sizes(NamedTuple):
    """How many examples a search takes."""

    discovery: int
    held_out: int


class HubSource(NamedTuple):
    """Where a benchmark lies on the hub: a data set with its configuration, or JSONL files by URL."""

    path: str
    config: str | None = None
    splits: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One row as read: its fields, where it stood, and the official split it belongs to ("" where there is none)."""

    fields: Mapping[str, Any]
    where: str
    split: str = ""

    def text(self, *names: str) -> str:
        """The first of the named fields, which must be a text."""
        value = self.value(*names)
        if not isinstance(value, str):
            raise DataError(f"{self.where}: field '{names[0]}' is {type(value).__name__}, not text: correct the row")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise DataError(f"{self.where}: field '{names[0]}' holds half a letter (a lone surrogate): correct the row")
        return value

    def filled(self, *names: str) -> str:
        """The first of the named fields, which must be a text with more in it than blanks."""
        text = self.text(*names)
        if not text.strip():
            raise DataError(f"{self.where}: field '{names[0]}' is empty: correct the row")
        return text

    def texts(self, name: str, count: int) -> tuple[str, ...]:
        """A field that is a list of exactly `count` texts."""
        values = self.value(name)
        values = list(values) if not isinstance(values, str) and hasattr(values, "__iter__") else []
        if len(values) != count or not all(isinstance(value, str) for value in values):
            raise DataError(f"{self.where}: field '{name}' must be a list of {count} texts: correct the row")
        return tuple(values)

    def value(self, *names: str) -> Any:
        """The first of the named fields that is there.

        Raises:
            DataError: none is.
        """
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        raise DataError(f"{self.where}: field '{names[0]}' is missing: give the benchmark's original fields")


@dataclass(frozen=True)
class Example:
    """One question of a task, ready to be put to a model.

    `key` identifies it by content: two rows that read and score alike are one example. `continuations` are what is scored
    (the choices, or the one gold continuation; none where the model writes a program), `gold` the index of the right one.
    """

    key: str = field(init=False)
    task: str
    context: str
    continuations: tuple[str, ...]
    gold: int
    answer: str  # the gold answer as shown
    kind: str = ""
    tests: tuple[str, ...] = ()  # asserts that a written program must pass
    split: str = ""  # the official split it belongs to; no part of its content

    def __post_init__(self) -> None:
        content = [self.task, self.context, self.continuations, self.gold, self.tests]
        digest = hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()
        object.__setattr__(self, "key", digest[:32])


class Task(ABC):
    """A benchmark: its name, how it is scored, where its rows come from, and how a row becomes an example.

    `version` is part of the protocol: it changes whenever the text a model reads, the judging of an answer, or the choice of
    generated rows changes.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]  # what is asked and when an answer is right, for readers
    version: ClassVar[int] = 1
    scoring: ClassVar[Scoring]
    paper_sizes: ClassVar[Sizes]
    hub: ClassVar[HubSource | None] = None
    discovery_splits: ClassVar[tuple[str, ...]] = ("train",)
    held_out_splits: ClassVar[tuple[str, ...]] = ("validation",)

    @abstractmethod
    def examples(self, rows: list[Row]) -> list[Example]:
        """The rows as examples, in order.

        Raises:
            DataError: a row lacks a field, or has a value that cannot be read; the message names file and line.
        """

    def divisors(self, continuations: Sequence[str]) -> list[int]:
        """What each continuation's log-probability is divided by before they are compared: its characters, where scored so."""
        per_character = self.scoring == Scoring.CHOICE_PER_CHARACTER
        return [max(1, len(continuation) - 1) if per_character else 1 for continuation in continuations]

    def generated_rows(self, seed: int) -> list[Row]:
        """Rows made from a seed, for tasks that can be generated; empty for the others."""
        del seed
        return []
