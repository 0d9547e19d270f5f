"""Plain values from a file that anybody may have written: each is checked for type and size, or refused in words."""

import dataclasses
import math
import re
import types
import typing
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar

from cel_core.errors import DataError

MAX_TEXT = 4096  # characters of a name, a note, a reason
MAX_WHOLE = 2**63 - 1  # what a store's column holds
OLDEST = datetime(2020, 1, 1, tzinfo=UTC)

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HALF_LETTER = re.compile("[\ud800-\udfff]")

Record = TypeVar("Record")


def refuse(problem: str) -> NoReturn:
    """Say what is wrong with a value.

    Raises:
        DataError: always.
    """
    raise DataError(problem)


def shown(value: object) -> str:
    """A value as an error may quote it: short, on one line."""
    return ascii(value)[:40]


def text(value: object, name: str, most: int = MAX_TEXT, any_letter: bool = False) -> str:
    """A text of at most `most` characters; unless `any_letter`, without control characters, which a terminal would obey."""
    if not isinstance(value, str):
        refuse(f"{name} is {shown(value)}, not a text")
    if len(value) > most:
        refuse(f"{name} has {len(value):,} characters, more than {most:,}")
    if _HALF_LETTER.search(value):
        refuse(f"{name} holds half a letter (a lone surrogate)")
    if not any_letter and _CONTROL.search(value):
        refuse(f"{name} holds control characters")
    return value


def texts(value: object, name: str, most: int = MAX_TEXT, any_letter: bool = False) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list):
        refuse(f"{name} is {shown(value)}, not a list")
    return tuple(text(each, name, most, any_letter) for each in value)


def whole(value: object, name: str, least: int = 0, most: int = MAX_WHOLE) -> int:
    """A whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(f"{name} is {shown(value)}, not a whole number")
    if not least <= value <= most:
        refuse(f"{name} is {shown(value)}, not between {least:,} and {most:,}")
    return value


def number(value: object, name: str, least: float = -math.inf) -> float:
    """A finite number from `least` up."""
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e300 or math.isnan(value):
        refuse(f"{name} is {shown(value)}, not a finite number")
    if value < least:
        refuse(f"{name} is {shown(value)}, below {least:g}")
    return value


def moment(value: object, name: str) -> datetime:
    """A time with its zone, not before this program and not in the future (a day's grace for clocks)."""
    try:
        found = datetime.fromisoformat(text(value, name)).astimezone(UTC)
    except (ValueError, OverflowError):
        refuse(f"{name} is {shown(value)}, not a time")
    if not OLDEST <= found <= datetime.now(UTC) + timedelta(days=1):
        refuse(f"{name} is {shown(value)}, long ago or in the future")
    return found


def fields(value: object, name: str, names: typing.Collection[str]) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(value, dict):
        refuse(f"{name} is {shown(value)}, not an object")
    if odd := sorted(set(names) ^ set(value)):
        refuse(f"{name} {'lacks the' if odd[0] in names else 'has the unknown'} field {shown(odd[0])}")
    return value


def built(kind: type[Record], value: object, name: str) -> Record:
    """A dataclass from an object of its fields; one that has a default may be missing.

    Raises:
        DataError: a field is unknown, missing or of another type.
        CelError: the dataclass itself refuses its values.
    """
    if not isinstance(value, dict):
        refuse(f"{name} is {shown(value)}, not an object")
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in value and field.default is dataclasses.MISSING:
            refuse(f"{name} lacks the field '{field.name}'")
    for each in value:
        if each not in hints:
            refuse(f"{name} has the unknown field {shown(each)}")
    return kind(**{key: _typed(each, hints[key], f"{name}.{key}") for key, each in value.items()})


def _typed(value: object, hint: Any, name: str) -> Any:
    """A value of one of the types that the project's records are made of."""
    if isinstance(hint, types.UnionType):  # of something and None
        return None if value is None else _typed(value, typing.get_args(hint)[0], name)
    if hint is bool:
        return value if isinstance(value, bool) else refuse(f"{name} is {shown(value)}, not true or false")
    if hint is int:
        return whole(value, name, -MAX_WHOLE)
    if hint is float:
        return number(value, name)
    return texts(value, name) if typing.get_origin(hint) is tuple else text(value, name)
