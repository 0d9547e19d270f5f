"""What the store gives to read: one record a search, one row a flip."""

import dataclasses
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from cel_core import statistics
from cel_core.config import SearchConfig
from cel_core.heads import HeadSet
from cel_core.search import n_subsets


class Part(StrEnum):
    """The two sides of a search."""

    DISCOVERY = "discovery"
    HELD_OUT = "held-out"


class Status(StrEnum):
    """Where a search stands. A queued or running one whose process is gone reads as interrupted."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DONE = "done"


class HeldOut(NamedTuple):
    """The held-out comparison of the frozen set with the intact model, as counts of examples."""

    n: int
    intact_correct: int
    ablated_correct: int
    fixes: int
    harms: int

    @property
    def intact_accuracy(self) -> float:
        """As a fraction."""
        return self.intact_correct / self.n

    @property
    def ablated_accuracy(self) -> float:
        """As a fraction."""
        return self.ablated_correct / self.n

    @property
    def gain(self) -> float:
        """As a fraction."""
        return statistics.gain(self.fixes, self.harms, self.n)

    @property
    def interval(self) -> statistics.Interval:
        """95 % confidence interval of the gain."""
        return statistics.gain_interval(self.fixes, self.harms, self.n)

    @property
    def mcnemar_p(self) -> float:
        """Two-sided exact McNemar p."""
        return statistics.mcnemar_p(self.fixes, self.harms)

    @property
    def relative_error_reduction(self) -> float:
        """As a fraction; NaN where the intact model made no error."""
        return statistics.relative_error_reduction(self.gain, self.intact_accuracy)


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """One search as stored: the plan, how far it is, and what it found."""

    id: str
    created_at: datetime
    updated_at: datetime
    status: Status
    stage: str
    done: int  # evaluations made in this stage
    total: int
    config: SearchConfig
    model: dict[str, Any]  # spec, family, n_layers, n_heads, n_kv_heads, dtype, device; empty until loaded
    environment: dict[str, str]
    n_discovery: int
    n_held_out: int
    notes: tuple[str, ...]
    error: str
    duration_s: float
    frozen_set: HeadSet | None
    discovery_gain: float | None
    held_out: HeldOut | None
    token_layers: float = 0.0  # tokens run through layers by this search; what it found in the store cost it nothing
    plain_token_layers: float | None = None  # one full pass per head set and request; None for programs, and until done

    @property
    def n_heads(self) -> int:
        """All heads of the model; 0 until it is loaded."""
        return self.model.get("n_layers", 0) * self.model.get("n_heads", 0)

    def n_examples(self, part: Part) -> int:
        """Examples on a side."""
        return self.n_held_out if part is Part.HELD_OUT else self.n_discovery

    @property
    def n_screened(self) -> int:
        """Heads that stage 1 evaluates."""
        return min(self.n_heads, self.config.shortlist or self.n_heads)

    @property
    def screened(self) -> str:
        """What stage 1 evaluated, where that is not every head; "" where it is."""
        if self.config.shortlist is None:
            return ""
        n_heads = f" of {self.n_heads:,}" if self.n_heads else ""
        return f"approximate screen: only the {self.config.shortlist:,} heads{n_heads} that attribution promised most of"

    @property
    def beneficial(self) -> bool:
        """Whether the frozen set gained on the discovery examples; where not, the pool held no beneficial set."""
        return self.discovery_gain is not None and self.discovery_gain > 0

    def as_json(self) -> dict[str, Any]:
        """The headline as plain data; `pool` is added by whoever has the ranking."""
        held_out = self.held_out
        return {
            "search_id": self.id,
            "status": str(self.status),
            "created_at": self.created_at.isoformat(timespec="seconds"),
            "model": self.model or {"spec": self.config.model},
            "task": self.config.task,
            "n_discovery": self.n_discovery,
            "n_held_out": self.n_held_out,
            "intact_accuracy": held_out and held_out.intact_accuracy,
            "ablated_accuracy": held_out and held_out.ablated_accuracy,
            "gain": held_out and held_out.gain,
            "gain_interval": held_out and list(held_out.interval),
            "relative_error_reduction": held_out and _finite(held_out.relative_error_reduction),
            "fixes": held_out and held_out.fixes,
            "harms": held_out and held_out.harms,
            "mcnemar_p": held_out and held_out.mcnemar_p,
            "frozen_set": [str(head) for head in self.frozen_set] if self.frozen_set else None,
            "discovery_gain": self.discovery_gain,
            "subsets_evaluated": n_subsets(self.config.p, self.config.k) if self.frozen_set else None,
            "beneficial": self.beneficial if self.frozen_set else None,
            "approximate_screen": self.config.shortlist is not None,
            "shortlist": self.config.shortlist,
            "p": self.config.p,
            "k": self.config.k,
            "seed": self.config.seed,
            "notes": list(self.notes),
            "error": self.error or None,
            "token_layers": round(self.token_layers),
            "plain_token_layers": self.plain_token_layers and round(self.plain_token_layers),
            "duration_s": round(self.duration_s, 3),
        }


def _finite(value: float) -> float | None:
    return None if value != value else value
