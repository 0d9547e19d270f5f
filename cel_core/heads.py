"""Attention heads by their place in a model: ``L12H3`` is query head 3 of layer 12, both counted from 0.

A *head set* is what an ablation removes. It is a sorted tuple of distinct heads, so that two spellings of one set are equal,
hash alike and print alike; the empty set is the intact model. Order is numeric (layer, then index), never textual.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cel_core.errors import HeadError

_HEAD = re.compile(r"L(\d{1,4})H(\d{1,4})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, order=True)
class Head:
    """One query head: layer and index within the layer, both from 0. Sorts numerically."""

    layer: int
    index: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.index}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Read ``L12H3`` (case and surrounding blanks do not matter).

        Raises:
            HeadError: the text is not of that form.
        """
        match = _HEAD.fullmatch(text.strip())
        if match is None:
            raise HeadError(f"'{text.strip()[:40]}' is not a head: write layer and index from 0, such as L12H3")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, order=True)
class HeadSet:
    """A set of heads to remove together, kept sorted; build it with `HeadSet.of` or `HeadSet.parse`."""

    heads: tuple[Head, ...] = ()

    def __post_init__(self) -> None:
        if list(self.heads) != sorted(set(self.heads)):
            raise ValueError(f"heads must be distinct and sorted: {self.heads}")

    @classmethod
    def of(cls, heads: Iterable[Head]) -> "HeadSet":
        """The set of the given heads, in any order, duplicates dropped."""
        return cls(tuple(sorted(set(heads))))

    @classmethod
    def parse(cls, text: str) -> "HeadSet":
        """Read ``L2H0,L2H6``; an empty text is the empty set (the intact model).

        Raises:
            HeadError: a part is not a head.
        """
        return cls.of(Head.parse(part) for part in re.split(r"[,\s]+", text.strip()) if part)

    def within(self, n_layers: int, n_heads: int) -> "HeadSet":
        """This set, once every head is known to exist in a model of `n_layers` x `n_heads`.

        Raises:
            HeadError: a head lies outside the model.
        """
        for head in self.heads:
            if head.layer >= n_layers or head.index >= n_heads:
                raise HeadError(
                    f"{head} is not in this model: layers go from 0 to {n_layers - 1}, heads from 0 to {n_heads - 1}"
                )
        return self

    def __str__(self) -> str:
        return ",".join(map(str, self.heads))

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[Head]:
        return iter(self.heads)

    def __contains__(self, head: object) -> bool:
        return head in self.heads


INTACT = HeadSet()


def all_heads(n_layers: int, n_heads: int) -> list[Head]:
    """Every head of a model, in numeric order."""
    return [Head(layer, index) for layer in range(n_layers) for index in range(n_heads)]
