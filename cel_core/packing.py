"""Many examples in one sequence, so that what they share is computed once.

A *pack* is a trie of tokens laid out as one sequence: a node's parent is the token before it, its position its depth, and it
attends to its ancestors alone. Choices of one example share its context, examples share their leading tokens (worked
examples, a chat template's system turn, ``Question: What is``), and no padding is needed. A continuation's last token is
predicted, never read, so a choice of one token adds nothing at all.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cel_core.prompts import Request

Array = np.ndarray


class Pack(NamedTuple):
    """One packed sequence of `n_tokens` tokens and what is read from it."""

    tokens: Array  # (n_tokens,) token ids
    positions: Array  # (n_tokens,) depth in the trie, from 0
    parents: Array  # (n_tokens,) index of the token before, -1 at a root
    read_at: Array  # (n_reads,) the distinct tokens whose next-token distribution is read, ascending
    scored_read: Array  # (n_scored,) for each scored token of each request, in order: its index into read_at
    scored_token: Array  # (n_scored,) the token scored there
    n_scored: Array  # (n_requests,) how many tokens each request scores
    examples: Array  # (n_examples,) which examples, as indices into what was packed

    @property
    def key(self) -> bytes:
        """Identifies the sequence and what is read from it by content, whatever the examples' numbers."""
        parts = (self.tokens, self.parents, self.read_at)
        return hashlib.sha256(b"".join(part.tobytes() + b"|" for part in parts)).digest()

    def again(self, examples: Sequence[Sequence[Request]], capacity: int) -> "list[Pack]":
        """This pack's examples packed once more, into smaller sequences; they keep their numbers."""
        return [part._replace(examples=self.examples[part.examples]) for part in pack(examples, capacity)]

    def attends(self, window: int | None = None) -> Array:
        """Which token may attend to which, ``(n_tokens, n_tokens)``; with a window, only positions less than it apart."""
        allowed = np.zeros((len(self.tokens), len(self.tokens)), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                allowed[node] = allowed[parent]
            allowed[node, node] = True
        if window is not None:
            allowed &= self.positions[:, None] - self.positions[None, :] < window
        return allowed


def pack(examples: Sequence[Sequence[Request]], capacity: int) -> list[Pack]:
    """Pack examples, each a list of requests, into sequences of at most `capacity` tokens (one long example may pass it).

    Examples are laid out in the order of their tokens, so that those that share most stand together.
    """
    order = sorted(range(len(examples)), key=lambda index: [request.context for request in examples[index]])
    packs: list[Pack] = []
    trie = _Trie()
    for index in order:
        if not trie.add(index, examples[index], capacity):
            packs.append(trie.pack())
            trie = _Trie()
            trie.add(index, examples[index], capacity)
    return [*packs, trie.pack()] if trie.examples else packs


class _Trie:
    def __init__(self) -> None:
        self.nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.positions: list[int] = []
        self.scored: list[tuple[int, int]] = []  # (node read, token scored)
        self.n_scored: list[int] = []
        self.examples: list[int] = []

    def add(self, index: int, requests: Sequence[Request], capacity: int) -> bool:
        """Add one example; leave the trie as it was and return False where that would pass the capacity."""
        before = len(self.tokens), len(self.scored), len(self.n_scored)
        for request in requests:
            node = -1
            path = []
            for token in request.context + request.continuation[:-1]:
                node = self._step(node, token)
                path.append(node)
            reads = path[len(request.context) - 1 :]
            self.scored += zip(reads, request.continuation, strict=True)
            self.n_scored.append(len(reads))
        if len(self.tokens) > capacity and self.examples:
            self._undo(*before)
            return False
        self.examples.append(index)
        return True

    def pack(self) -> Pack:
        nodes, tokens = np.array(self.scored, dtype=np.int64).T
        read_at, scored_read = np.unique(nodes, return_inverse=True)
        return Pack(
            tokens=np.array(self.tokens),
            positions=np.array(self.positions),
            parents=np.array(self.parents),
            read_at=read_at,
            scored_read=scored_read,
            scored_token=tokens,
            n_scored=np.array(self.n_scored),
            examples=np.array(self.examples),
        )

    def _step(self, parent: int, token: int) -> int:
        node = self.nodes.get((parent, token))
        if node is None:
            node = self.nodes[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.positions.append(self.positions[parent] + 1 if parent >= 0 else 0)
        return node

    def _undo(self, n_tokens: int, n_scored: int, n_requests: int) -> None:
        for node in range(n_tokens, len(self.tokens)):
            del self.nodes[self.parents[node], self.tokens[node]]
        del self.tokens[n_tokens:], self.parents[n_tokens:], self.positions[n_tokens:]
        del self.scored[n_scored:], self.n_scored[n_requests:]
