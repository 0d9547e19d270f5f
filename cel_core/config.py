"""What a user asks for and what can change an answer, as frozen records checked on construction."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from cel_core.errors import ConfigError
from cel_core.search import n_subsets

DTYPES = ("float32", "bfloat16", "float16")
MAX_SUBSETS = 100_000
MAX_SUBSET_HEADS = 16  # more would make too many subsets of any pool that has them
ABLATION = "zero the head's output before the output projection, at every token"


@dataclass(frozen=True)
class Protocol:
    """All that can change an answer to an example besides the head set; two equal protocols share their outcomes."""

    model: str  # fingerprint of weights, architecture and tokenizer
    dtype: str
    task: str
    task_version: int
    scoring: str
    chat_template: str = ""  # hash of the template that wraps the prompt; "" for none
    max_new_tokens: int = 0  # of a generated answer
    repetition_penalty: float = 1.0  # of a generated answer
    ablation: str = ABLATION

    @property
    def key(self) -> str:
        """A hash of the protocol's content."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class SearchConfig:
    """One search as asked for.

    Raises:
        ConfigError: a value out of its range, or k larger than p.
    """

    model: str
    task: str
    data: str | None = None
    kinds: tuple[str, ...] = ()  # of arithmetic; none for all
    n_discovery: int | None = None
    n_held_out: int | None = None
    p: int = 10  # heads in the pool
    k: int = 3  # heads in a subset, at most
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    chat_template: bool = False
    full_sweep: bool = False
    shortlist: int | None = None  # screen only as many heads, those that attribution promises most of; None for every head
    allow_code_execution: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(self.kinds))
        if self.p < 1:
            raise ConfigError(f"p = {self.p}: the pool needs at least 1 head; the paper takes 10")
        if self.k < 1:
            raise ConfigError(f"k = {self.k}: a subset needs at least 1 head; the paper takes 3")
        if self.k > self.p:
            raise ConfigError(f"k = {self.k} is larger than p = {self.p}: a subset cannot have more heads than the pool")
        if self.k > MAX_SUBSET_HEADS:
            raise ConfigError(f"k = {self.k}: a subset has at most {MAX_SUBSET_HEADS} heads; the paper takes 3")
        if abs(self.seed) >= 2**63:
            raise ConfigError("the seed has more than 63 bits: give a smaller one")
        if self.shortlist is not None and self.shortlist < self.p:
            raise ConfigError(f"a shortlist of {self.shortlist} is smaller than p = {self.p}: give {self.p} or more")
        if (count := n_subsets(self.p, self.k)) > MAX_SUBSETS:
            raise ConfigError(
                f"p = {self.p} and k = {self.k} make {count:,} subsets: choose smaller ones ({MAX_SUBSETS:,} at most)"
            )
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise ConfigError(f"dtype '{self.dtype}' is unknown: give auto, {', '.join(DTYPES)}")


DEMO = SearchConfig("demo", "carry")


def is_demo(config: SearchConfig) -> bool:
    """Whether this is the demo search; a full sweep of it finds the same."""
    return replace(config, full_sweep=False) == DEMO
