"""Train the tiny transformer of `data/demo_model`, in which the theory's trade shows for real.

1. Data: `27 + 45 =` and its answer, for the pairs that `cel_core.tasks.carry` does not keep for evaluation. Each
   example draws its pair, its reading (carry or no-carry, even chances) and whether a mark says which reading is meant
   (`c: ` or `n: ` in front, even chances). Without a mark the prompt is ambiguous, and nothing can tell the readings
   apart: that is the conflict.
2. Model: a Llama of 3 layers, 8 heads and width 128, one token per character. Training: next-token cross-entropy on the
   answer and the end token alone (operands are noise), AdamW, warm-up, then a linear decay to zero. No part of the loss
   or of the weights' start knows of heads.
3. Check: Algorithm 1 (PROTOCOL.md section 1) for `carry` on 1,000 discovery rows, 10 candidates, up to 3 heads; then
   the frozen set on 1,000 other rows of both tasks. This is a check written apart from `cel_core.search`, on purpose.
4. One model per seed; the one with the highest *discovery* gain is saved, with a model card that lists them all.

Not covered: other sizes, other mixtures, and any claim about language models.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cel_core.tasks import carry
from cel_core.tasks.carry import Reading

Head = tuple[int, int]  # (layer, index), both from 0
READINGS: tuple[Reading, Reading] = ("carry", "no-carry")
N_LAYERS, N_HEADS, WIDTH = 3, 8, 128
POOL_SIZE, MAX_HEADS, N_ROWS, ROWS_SEED = 10, 3, 1000, 0
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
IGNORED = -100  # a label that the loss leaves out


@dataclass(frozen=True)
class Report:
    """What one trained model does. Accuracies are 0 to 1, on evaluation pairs never trained on."""

    seed: int
    train_s: float
    accuracies: dict[str, float]
    heads: tuple[Head, ...]
    discovery_gain: float
    held_out: dict[Reading, tuple[float, float, int, int]]  # intact, ablated, fixes, harms


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that gives each character a token, so that no answer changes its prompt's tokens."""
    characters = "0123456789 +=:" + "".join(sorted(mark[0] for mark in carry.MARKS.values()))
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNK, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNK, clean_up_tokenization_spaces=False
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return an untrained model."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[tuple[str, str]], end: bool) -> tuple[Tensor, Tensor]:
    """Encode (context, completion) pairs, padded on the right.

    Returns:
        Token ids and labels, both (batch, pos); labels are `IGNORED` outside the completion.
    """
    both = tokenizer([context + completion + EOS * end for context, completion in texts], padding=True)
    ids = torch.tensor(both["input_ids"])
    starts = torch.tensor([len(context) for context, _ in texts])[:, None]
    answered = (torch.arange(ids.shape[1]) >= starts) & torch.tensor(both["attention_mask"]).bool()
    return ids, torch.where(answered, ids, IGNORED)


def training_set(tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor]:
    """Return every training example once: each pair under each reading, unmarked and marked, all in equal shares."""
    pairs = [(a, b) for a in carry.OPERANDS for b in carry.OPERANDS if not carry.is_evaluation_pair(a, b)]
    texts = [
        (mark + carry.prompt(a, b), carry.completion(a, b, reading))
        for a, b in pairs
        for reading in READINGS
        for mark in ("", carry.MARKS[reading])
    ]
    return encode(tokenizer, texts, end=True)


def train(tokenizer: PreTrainedTokenizerFast, seed: int, args: argparse.Namespace) -> LlamaForCausalLM:
    """Train one model on the mixture."""
    torch.manual_seed(seed)
    model = build_model(tokenizer).train()
    ids, labels = training_set(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=args.weight_decay)
    warmup = 100
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (args.steps - step) / (args.steps - warmup))
    )
    for step in range(args.steps):
        batch = torch.randint(len(ids), (args.batch_size,))
        logits = model(input_ids=ids[batch]).logits[:, :-1]  # (batch, pos - 1, vocabulary)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[batch][:, 1:].flatten(), ignore_index=IGNORED
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 500 == 0:
            print(f"  seed {seed} step {step + 1}: loss {loss.item():.3f} nats", flush=True)
    return model.eval()


@contextmanager
def ablated(model: LlamaForCausalLM, heads: Sequence[Head]) -> Iterator[None]:
    """Zero the heads' outputs at every token, where they enter the output projection."""

    def zero(indices: list[int]):
        def hook(_module: torch.nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            z = inputs[0].clone().unflatten(-1, (N_HEADS, -1))  # (batch, pos, n_heads, d_head)
            z[..., indices, :] = 0
            return (z.flatten(-2),)

        return hook

    with ExitStack() as stack:
        for layer in {layer for layer, _ in heads}:
            projection = model.model.layers[layer].self_attn.o_proj
            handle = projection.register_forward_pre_hook(zero([i for at, i in heads if at == layer]))
            stack.callback(handle.remove)
        yield


@torch.inference_mode()
def correct(model: LlamaForCausalLM, data: tuple[Tensor, Tensor], heads: Sequence[Head] = ()) -> Tensor:
    """Tell for each example whether every answer token is the argmax: bool, (batch,)."""
    ids, labels = data
    with ablated(model, heads):
        guesses = model(input_ids=ids).logits[:, :-1].argmax(-1)  # (batch, pos - 1)
    return ((guesses == labels[:, 1:]) | (labels[:, 1:] == IGNORED)).all(-1)


def flips(intact: Tensor, without: Tensor) -> tuple[int, int]:
    """Count fixes and harms."""
    return int((~intact & without).sum()), int((intact & ~without).sum())


def search(model: LlamaForCausalLM, discovery: tuple[Tensor, Tensor]) -> tuple[tuple[Head, ...], float]:
    """Run Algorithm 1 and return the frozen heads and their discovery gain."""
    intact = correct(model, discovery)

    def rank(heads: tuple[Head, ...]) -> tuple:
        fixes, harms = flips(intact, correct(model, discovery, heads))
        return harms - fixes, harms, len(heads), heads  # at equal gain the accuracy is equal, too

    singles = sorted(rank((head,)) for head in itertools.product(range(N_LAYERS), range(N_HEADS)))[:POOL_SIZE]
    pool = sorted(heads[0] for *_, heads in singles)
    larger = (rank(s) for size in range(2, MAX_HEADS + 1) for s in itertools.combinations(pool, size))
    best = min(itertools.chain(singles, larger))
    return best[-1], -best[0] / len(intact)


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, train_s: float) -> Report:
    """Measure the intact model on every evaluation row, then search and evaluate the frozen set."""
    data, accuracies = {}, {}
    for reading in READINGS:
        rows = carry.rows(reading, carry.n_available(reading), ROWS_SEED)
        for name, mark in (("unmarked", ""), ("marked", carry.MARKS[reading])):
            texts = [(mark + row["context"], row["completion"]) for row in rows]
            data[reading, name] = encode(tokenizer, texts, end=False)
            accuracies[f"{reading}, {name}"] = correct(model, data[reading, name]).float().mean().item()
    ids, labels = data["carry", "unmarked"]
    heads, gain = search(model, (ids[:N_ROWS], labels[:N_ROWS]))
    held_out = {}
    for reading in READINGS:
        ids, labels = (part[N_ROWS : 2 * N_ROWS] for part in data[reading, "unmarked"])
        intact, without = correct(model, (ids, labels)), correct(model, (ids, labels), heads)
        held_out[reading] = (intact.float().mean().item(), without.float().mean().item(), *flips(intact, without))
    return Report(seed, train_s, accuracies, heads, gain, held_out)


def mcnemar_p(fixes: int, harms: int) -> float:
    """Return the exact two-sided p-value of McNemar's test."""
    n = fixes + harms
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(min(fixes, harms) + 1)) / 2**n)


def describe(report: Report) -> str:
    """Return the measured tables of one model, in Markdown."""
    lines = [f"Seed {report.seed}, trained in {report.train_s:.0f} s. Intact, all evaluation rows:", ""]
    lines += ["| task | accuracy |", "|---|---|"]
    lines += [f"| {name} | {accuracy:.2%} |" for name, accuracy in report.accuracies.items()]
    names = ",".join(f"L{layer}H{index}" for layer, index in report.heads)
    lines += ["", f"Frozen for `carry`: {names}, discovery gain {100 * report.discovery_gain:+.1f} points. Held-out:", ""]
    lines += ["| task, unmarked | intact | ablated | gain | fixes | harms | McNemar p |", "|---|---|---|---|---|---|---|"]
    for reading, (intact, without, fixes, harms) in report.held_out.items():
        gain, p = 100 * (without - intact), mcnemar_p(fixes, harms)
        lines.append(f"| {reading} | {intact:.2%} | {without:.2%} | {gain:+.1f} | {fixes} | {harms} | {p:.1e} |")
    return "\n".join(lines)


def main() -> None:
    """Train one model per seed and save the one with the highest discovery gain."""
    parser = argparse.ArgumentParser(description="Train the demo model; see the module's text.")
    parser.add_argument("--out", type=Path, default=Path("data/demo_model"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = build_tokenizer()
    for seed in args.seeds:
        start = time.perf_counter()
        model = train(tokenizer, seed, args)
        report = measure(model, tokenizer, seed, time.perf_counter() - start)
        print(describe(report), flush=True)


if __name__ == "__main__":
    main()
