"""The plain way of the benchmark beside nnsight doing the same single-head sweep, on the same rows, in turn.

Install nnsight first (`pip install nnsight`; it is no requirement of the project). For every head set and batch of 8 requests
nnsight traces one forward pass of the same padded tokens, sets the head's slice of the output projection's input to zero and
saves the logits; `cel_core.engine.PlainEngine` does it with a hook. Log-probabilities are compared.

    python scripts/bench_nnsight.py --model M --task hellaswag --data DIR --rows 4
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from nnsight import LanguageModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cel_core.config import SearchConfig  # noqa: E402
from cel_core.engine import PlainEngine  # noqa: E402
from cel_core.evaluation import Evaluator  # noqa: E402
from cel_core.experiment import draw, load_checked  # noqa: E402
from cel_core.heads import HeadSet, all_heads  # noqa: E402
from cel_core.models import Model  # noqa: E402
from cel_core.prompts import Request  # noqa: E402
from cel_core.tasks import find_task  # noqa: E402

BATCH = 8
N_SETS = 12


def traced(wrapped: LanguageModel, model: Model, head_set: HeadSet, requests: Sequence[Request]) -> list[float]:
    """Log-probabilities of requests by nnsight, in nats."""
    found: list[float] = []
    d_head = model.geometry.d_head
    for first in range(0, len(requests), BATCH):
        batch = requests[first : first + BATCH]
        rows = [request.context + request.continuation[:-1] for request in batch]
        width = max(map(len, rows))
        tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        with torch.no_grad(), wrapped.trace({"input_ids": tokens, "attention_mask": mask}):
            for head in head_set:
                z = wrapped.model.layers[head.layer].self_attn.o_proj.input
                z[:, :, head.index * d_head : (head.index + 1) * d_head] = 0
            logits = wrapped.lm_head.output.save()
        for row, request in enumerate(batch):
            at = torch.arange(len(request.context) - 1, len(request.context) + len(request.continuation) - 1)
            logprobs = logits[row, at].float().log_softmax(-1)
            found.append(logprobs[torch.arange(len(at)), torch.tensor(request.continuation)].double().sum().item())
    return found


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "task"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--data", help="folder of rows (default: the hub, or generated)")
    parser.add_argument("--rows", type=int, default=4)
    chosen = parser.parse_args()
    config = SearchConfig(chosen.model, chosen.task, chosen.data, n_discovery=chosen.rows, n_held_out=1)
    model, examples = load_checked(config), draw(config).discovery
    evaluator = Evaluator(model, find_task(config.task), engine=PlainEngine(model, BATCH))
    requests = [evaluator.requests(example) for example in examples]
    flat = [request for example in requests for request in example]
    wrapped = LanguageModel(model.causal_lm, tokenizer=model.tokenizer)
    heads = all_heads(*model.geometry[:2])
    head_sets = [HeadSet((heads[i],)) for i in np.linspace(0, len(heads) - 1, N_SETS).round().astype(int)]
    seconds, worst = {"plain": 0.0, "nnsight": 0.0}, 0.0
    for number, head_set in enumerate([head_sets[0], *head_sets]):
        began = time.perf_counter()
        theirs = traced(wrapped, model, head_set, flat)
        between = time.perf_counter()
        blocks = [block.scores.logprob_nats[0] for block in evaluator.engine.score([head_set], requests)]
        ended = time.perf_counter()
        worst = max(worst, float(np.abs(np.concatenate(blocks) - theirs).max()))
        if number:  # the first round warms both up
            seconds["nnsight"] += between - began
            seconds["plain"] += ended - between
    print(
        f"{len(flat)} requests, {N_SETS} heads: nnsight {seconds['nnsight']:.2f} s, plain way {seconds['plain']:.2f} s, "
        f"ratio {seconds['nnsight'] / seconds['plain']:.2f}; largest difference {worst:.1e} nats"
    )


if __name__ == "__main__":
    main()
