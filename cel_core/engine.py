"""Score continuations under many head sets, leaving out every computation that cannot change an answer.

Examples are packed (`cel_core.packing`) so that shared tokens are run once. Over each pack the head sets form a prefix tree:
``{L2H0, L5H1}`` goes on from the input of layer 5 in the run of ``{L2H0}``, which itself goes on from the input of layer 2 in
the intact run. So a set costs only the layers from its highest head up, and sets that start at one place run as one batch.
Logits are computed only where they are read (`cel_core.layers`).

`PlainEngine` is the same function done as one would by hand: one full forward pass per head set and batch, every request a
sequence of its own, logits everywhere. It is what the fast way is checked against, on every load, and what a model runs on
where the check fails.
"""

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor

from cel_core.ablation import ablate
from cel_core.heads import INTACT, Head, HeadSet
from cel_core.layers import Trace
from cel_core.models import Model
from cel_core.packing import Pack, pack
from cel_core.prompts import Request

log = logging.getLogger(__name__)
Array = np.ndarray

PACK_TOKENS = 512  # tokens in one packed sequence: long enough to share, short enough that masked-out attention stays cheap
BATCH_TOKENS = {"cpu": 4096, "mps": 8192, "cuda": 32768}  # tokens in one forward pass
LOGIT_BYTES = 1 << 27  # logits held at once


class Scores(NamedTuple):
    """What scoring saw, each ``(n_sets, n_requests)``."""

    logprob_nats: Array  # sum over the continuation's tokens
    margin_nats: Array  # smallest gap between a scored token and the best other one; above 0 when greedy
    n_matched: Array  # leading tokens that are the model's own choice; all of them when greedy
    written: Array  # the model's own token at the first place where it departs; -1 when greedy


class Block(NamedTuple):
    """Scores of some examples under some head sets; requests stand in the order of the examples."""

    examples: Array  # (n_examples,) indices into the examples given
    sets: Array  # (n_sets,) indices into the head sets given
    scores: Scores


class Work(NamedTuple):
    """What a computation cost: tokens run through layers, and vocabulary rows computed."""

    token_layers: float = 0.0
    logits: int = 0


class PackedEngine:
    """The fast way. `work` counts what has been run.

    Intact runs of the packs seen last are kept, within `memory_bytes`, so that the next head sets on the same examples (the
    next batch of a bounded search, a live toggle) start where they differ. Where a device runs out of memory, batches are
    halved and the pack is run again.
    """

    def __init__(
        self,
        model: Model,
        pack_tokens: int = PACK_TOKENS,
        batch_tokens: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.model = model
        self.memory_bytes = memory_bytes or free_bytes(model.device) // 4
        # the intact run of one pack must fit, with as much again for the runs that go on from it
        token_bytes = len(model.blocks) * model.projections[0].get_parameter("weight").shape[0] * model.causal_lm.dtype.itemsize
        self.pack_tokens = max(1, min(pack_tokens, model.max_length, self.memory_bytes // (2 * token_bytes)))
        self.batch_tokens = batch_tokens or BATCH_TOKENS[model.device.type]
        self.work = Work()
        self._traces: OrderedDict[bytes, Trace] = OrderedDict()  # the one not used for longest first

    @torch.inference_mode()
    def score(
        self, head_sets: Sequence[HeadSet], examples: Sequence[Sequence[Request]], greedy: bool = True
    ) -> Iterator[Block]:
        """Score every example's requests under every head set.

        Args:
            head_sets: the sets to remove, each for itself.
            examples: the requests of each example.
            greedy: also compare with the model's own choice; without it, only log-probabilities are computed.

        Yields:
            Blocks of examples and sets as they are done, in no promised order.

        Raises:
            HeadError: a head is not in the model.
        """
        n_layers, n_heads = self.model.geometry[:2]
        asked = [head_set.within(n_layers, n_heads) for head_set in head_sets]
        waiting = [(packed, frozenset(range(len(asked)))) for packed in pack(examples, self.pack_tokens)[::-1]]
        while waiting:
            packed, missing = waiting.pop()
            done: set[int] = set()
            try:
                for block in self._score(packed, _Node.tree(asked, missing), greedy):
                    done.update(block.sets.tolist())
                    yield block
            except torch.OutOfMemoryError:
                self._traces.clear()
                if self.batch_tokens <= 1 and len(packed.examples) == 1:
                    raise
                self.batch_tokens = max(1, self.batch_tokens // 2)
                self.pack_tokens = max(1, min(self.pack_tokens, self.batch_tokens))
                log.warning("out of memory on %s: going on with %d tokens at once", self.model.device, self.batch_tokens)
                smaller = packed.again([examples[index] for index in packed.examples], self.pack_tokens)
                waiting += [(part, missing - done) for part in smaller[::-1]]

    def _score(self, packed: Pack, tree: "_Node", greedy: bool) -> Iterator[Block]:
        trace = self._trace(packed)
        if tree.index is not None:
            _, output = trace.run(len(trace.inputs) - 1, trace.inputs[-1], frozenset(), to_end=True)
            self._count(packed, 1, to_end=True)
            yield _block(trace, [tree], output, greedy)
        yield from self._descend(trace, tree, dict(enumerate(trace.inputs)), greedy)

    def _trace(self, packed: Pack) -> Trace:
        """The intact run of a pack, kept or made."""
        key = packed.key
        if key not in self._traces:
            trace = Trace.of(self.model, packed)
            self._count(packed, len(trace.inputs) - 1)
            self._traces[key] = trace
            while len(self._traces) > 1 and sum(kept.n_bytes for kept in self._traces.values()) > self.memory_bytes:
                self._traces.popitem(last=False)
        self._traces.move_to_end(key)
        return replace(self._traces[key], pack=packed)

    def _descend(self, trace: Trace, node: "_Node", inputs: dict[int, Tensor], greedy: bool) -> Iterator[Block]:
        """Run the children of a node from its layer inputs, those that start at one layer together; then theirs."""
        n_layers = len(trace.inputs)
        groups: dict[tuple[int, bool], list[_Node]] = defaultdict(list)
        for head, child in node.children.items():
            groups[head.layer, child.index is not None].append(child)
        n_rows = max(1, self.batch_tokens // len(trace.pack.tokens))
        for (layer, to_end), group in sorted(groups.items(), key=lambda item: item[0]):
            for batch in (group[i : i + n_rows] for i in range(0, len(group), n_rows)):
                keep = frozenset(head.layer for child in batch for head in child.children)
                with ablate(self.model, [child.heads for child in batch]):
                    kept, output = trace.run(layer, inputs[layer].expand(len(batch), -1, -1), keep, to_end)
                self._count(trace.pack, (n_layers if to_end else max(keep)) - layer, len(batch), to_end)
                if to_end:
                    yield _block(trace, batch, output, greedy)
                for row, child in enumerate(batch):
                    if child.children:
                        yield from self._descend(trace, child, {at: x[row : row + 1] for at, x in kept.items()}, greedy)

    def _count(self, packed: Pack, n_layers: int, n_rows: int = 1, to_end: bool = False) -> None:
        """Add a run to the bill; in the last layer only the read tokens run whole, the others as far as their keys."""
        n_tokens = len(packed.tokens)
        token_layers = float(n_rows * n_tokens * n_layers)
        if to_end:
            token_layers -= n_rows * (n_tokens - len(packed.read_at)) * (1 - _keys_share(self.model))
        n_logits = n_rows * len(packed.read_at) if to_end else 0
        self.work = Work(self.work.token_layers + token_layers, self.work.logits + n_logits)


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device now."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


class PlainEngine:
    """The plain way, done with the model's own forward pass alone."""

    def __init__(self, model: Model, batch_size: int = 8) -> None:
        self.model = model
        self.batch_size = batch_size  # requests in one forward pass
        self.work = Work()

    @torch.inference_mode()
    def score(
        self, head_sets: Sequence[HeadSet], examples: Sequence[Sequence[Request]], greedy: bool = True
    ) -> Iterator[Block]:
        """See `PackedEngine.score`."""
        del greedy
        for first in range(0, len(examples), self.batch_size):
            batch = np.arange(first, min(first + self.batch_size, len(examples)))
            requests = [request for index in batch.tolist() for request in examples[index]]
            for index, head_set in enumerate(head_sets):
                parts = [
                    self._score(head_set, requests[i : i + self.batch_size]) for i in range(0, len(requests), self.batch_size)
                ]
                yield Block(
                    batch,
                    np.array([index]),
                    Scores(*(np.concatenate(part, axis=1) for part in zip(*parts, strict=True))),
                )

    def _score(self, head_set: HeadSet, requests: Sequence[Request]) -> Scores:
        rows = [request.context + request.continuation[:-1] for request in requests]
        width = max(map(len, rows))
        tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=self.model.device)
        read = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self.model.device)
        with ablate(self.model, head_set):
            logits = self.model.causal_lm(input_ids=tokens, attention_mask=read, use_cache=False).logits.float()
        self.work = Work(self.work.token_layers + tokens.numel() * len(self.model.blocks), self.work.logits + tokens.numel())
        n_scored = np.array([len(request.continuation) for request in requests])
        row_of = np.repeat(np.arange(len(rows)), n_scored)
        at = np.concatenate([np.arange(len(r.context) - 1, len(r.context) + len(r.continuation) - 1) for r in requests])
        tokens_scored = np.concatenate([request.continuation for request in requests])
        reads = logits[torch.from_numpy(row_of), torch.from_numpy(at)][None]
        return _scores(*_compare(reads, np.arange(len(at)), tokens_scored, True), tokens_scored, n_scored)


def build_engine(model: Model) -> PackedEngine | PlainEngine:
    """The fast engine, once it has agreed with the plain one on this model; the plain one where it does not."""
    fault = disagreement(model)
    if fault is None:
        return PackedEngine(model)
    log.warning("%s (%s): shared computation is off, every request runs by itself: %s", model.spec, model.family, fault)
    return PlainEngine(model)


def disagreement(model: Model) -> str | None:
    """Compare the two engines on random requests with shared beginnings and nested head sets; None where they agree.

    Where a model looks back a limited number of tokens, the requests are longer than that, up to 1,024 tokens.
    """
    text = model.causal_lm.config.get_text_config()
    window = getattr(text, "sliding_window", None) or 0
    length = 12 + (window if window <= 1024 else 0)
    rng = np.random.default_rng(0)
    stem, *others = (tuple(map(int, rng.integers(0, model.n_vocabulary, length))) for _ in range(5))
    examples = [
        [Request(stem, others[0][:3]), Request(stem, others[1][:2]), Request(stem[:-2], others[2][:1])],
        [Request(stem[:6] + others[3][:5], others[0][:1])],
    ]
    n_layers, n_heads = model.geometry[:2]
    ends = Head(0, 0), Head(n_layers // 2, n_heads - 1), Head(n_layers - 1, 0)
    # two more that start in one layer with another set, so that they run as one batch
    beside = [HeadSet.of([Head(layer, n_heads - 1)]) for layer in (0, n_layers - 1)]
    head_sets = [INTACT, *(HeadSet.of(ends[i:j]) for i in range(3) for j in range(i + 1, 4)), *beside]
    tolerance = 1e-3 if model.dtype == "float32" else 0.25
    try:
        fast, plain = (
            _table(engine.score(head_sets, examples), len(head_sets), 4) for engine in (PackedEngine(model), PlainEngine(model))
        )
    except Exception as error:  # whatever an unknown architecture's code objects to, the plain way is there
        log.debug("packed scoring failed", exc_info=True)
        return f"{type(error).__name__}: {error}"[:200]
    worst = float(np.abs(fast - plain).max())
    return None if worst <= tolerance else f"log-probabilities differ by up to {worst:.2g} nats"


def _table(blocks: Iterator[Block], n_sets: int, n_requests: int) -> Array:
    """Log-probabilities of the self-check's two examples, ``(n_sets, n_requests)``."""
    table = np.full((n_sets, n_requests), np.nan)
    columns = [np.arange(0, 3), np.arange(3, 4)]
    for block in blocks:
        table[np.ix_(block.sets, np.concatenate([columns[e] for e in block.examples]))] = block.scores.logprob_nats
    return table


class _Node:
    """A head set in the prefix tree of the sets asked for; `index` is its place among them, None for a mere beginning."""

    def __init__(self, heads: HeadSet) -> None:
        self.heads = heads
        self.index: list[int] | None = None
        self.children: dict[Head, _Node] = {}

    @classmethod
    def tree(cls, head_sets: Sequence[HeadSet], wanted: frozenset[int]) -> "_Node":
        """The tree of the sets whose numbers are wanted."""
        root = cls(INTACT)
        for index, head_set in enumerate(head_sets):
            if index not in wanted:
                continue
            node = root
            for count, head in enumerate(head_set, start=1):
                node = node.children.setdefault(head, cls(HeadSet(head_set.heads[:count])))
            node.index = [*(node.index or []), index]
        return root


def _block(trace: Trace, nodes: list[_Node], output: Tensor | None, greedy: bool) -> Block:
    """Scores of one batch: `output` is the last layer's at the read tokens, one row a node."""
    assert output is not None  # these nodes were run to the end
    packed = trace.pack
    n_rows = max(1, LOGIT_BYTES // (4 * len(packed.read_at) * trace.model.n_vocabulary))
    parts = [_compare(trace.logits(rows), packed.scored_read, packed.scored_token, greedy) for rows in output.split(n_rows)]
    logprob, gap, own = (torch.cat(part) for part in zip(*parts, strict=True))
    scores = _scores(logprob, gap, own, packed.scored_token, packed.n_scored)
    rows = [row for row, node in enumerate(nodes) for _ in node.index or ()]
    sets = np.array([index for node in nodes for index in node.index or ()])
    return Block(packed.examples, sets, Scores(*(values[rows] for values in scores)))


def _compare(logits: Tensor, scored_read: Array, scored_token: Array, greedy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Per scored token, ``(batch, n_scored)``: its log-probability, its gap to the best other token, the model's own token."""
    read = torch.from_numpy(np.ascontiguousarray(scored_read)).to(logits.device)
    token = torch.from_numpy(np.ascontiguousarray(scored_token)).to(logits.device)
    scored = logits[:, read, token]
    logprob = scored - logits.logsumexp(-1)[:, read]
    if not greedy:
        return logprob, torch.zeros_like(logprob), torch.zeros_like(logprob, dtype=torch.long)
    values, indices = (top[:, read] for top in logits.topk(2, dim=-1))
    chosen = indices[..., 0] == token
    return logprob, scored - torch.where(chosen, values[..., 1], values[..., 0]), indices[..., 0]


def _scores(logprob: Tensor, gap: Tensor, own: Tensor, scored_token: Array, n_scored: Array) -> Scores:
    """Sum up each request's tokens; this is the one place where results leave the device."""
    starts = np.concatenate([[0], np.cumsum(n_scored)[:-1]])
    own_tokens = own.cpu().numpy()
    missed = own_tokens != scored_token
    place = np.broadcast_to(np.arange(missed.shape[1]), missed.shape)
    first_miss = np.minimum.reduceat(np.where(missed, place, missed.shape[1]), starts, axis=1)
    n_matched = np.minimum(first_miss - starts, n_scored)
    rows = np.arange(len(missed))[:, None]
    written = np.where(n_matched < n_scored, own_tokens[rows, np.minimum(first_miss, missed.shape[1] - 1)], -1)
    return Scores(
        np.add.reduceat(logprob.double().cpu().numpy(), starts, axis=1),
        np.minimum.reduceat(gap.double().cpu().numpy(), starts, axis=1),
        n_matched,
        written,
    )


def _keys_share(model: Model) -> float:
    """The part of a layer that runs for a token whose keys and values alone are needed, by its weights."""
    block = model.blocks[-1]
    attention = sum(parameter.numel() for name, parameter in block.named_parameters() if "att" in name and "norm" not in name)
    return (attention - model.projections[-1].get_parameter("weight").numel()) / sum(p.numel() for p in block.parameters())
