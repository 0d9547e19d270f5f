"""Train the tiny transformer of `data/demo_model`, in which the theory's trade shows for real.

1. Data: `27 + 45 =` and its answer, for the pairs that `cel_core.tasks.carry` does not keep for evaluation. Each
   example draws its pair, its reading (carry or no-carry, even chances) and whether a mark says which reading is meant
   (`c: ` or `n: ` in front, even chances). Without a mark the prompt is ambiguous, and nothing can tell the readings
   apart: that is the conflict.
2. Model: a Llama of 3 layers, 8 heads and width 128, one token per character. Training: next-token cross-entropy on the
   answer and the end token alone (operands are noise), AdamW, warm-up, then a linear decay to zero. No part of the loss
   or of the weights' start knows of heads.
3. Check: Algorithm 1 (`docs/method.md`) for `carry` on 600 discovery rows, 10 candidates, up to 3 heads; then
   the frozen set on 600 other rows of both tasks. This is a check written apart from `cel_core.search`, on purpose.
4. One model per seed; the one with the highest *discovery* gain is saved, with a model card that lists them all.
5. `--measure FOLDER` checks a model that was saved before, as in step 3, and trains none.

Not covered: other sizes, other mixtures, and any claim about language models.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cel_core.tasks import carry

Head = tuple[int, int]  # (layer, index), both from 0
N_LAYERS, N_HEADS, WIDTH, MAX_POSITIONS = 3, 8, 128, 64
LEARNING_RATE, WEIGHT_DECAY, BATCH_SIZE, WARMUP_STEPS = 1e-3, 0.1, 128, 100
POOL_SIZE, MAX_HEADS, N_ROWS, ROWS_SEED = 10, 3, 600, 0  # rows on each side of a check
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
IGNORED = -100  # a label that the loss leaves out


class Report(NamedTuple):
    """What one trained model does on evaluation pairs, none of which it was trained on."""

    discovery_gain: float  # 0 to 1
    text: str  # Markdown: the frozen heads, accuracies, held-out gain


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that gives each character a token, so that no answer changes its prompt's tokens."""
    characters = "0123456789 +=:" + "".join(sorted(mark[0] for mark in carry.MARKS.values()))
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNK, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"pad_token": PAD, "eos_token": EOS, "unk_token": UNK}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAX_POSITIONS, **special)


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return an untrained model."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        max_position_embeddings=MAX_POSITIONS,
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
    texts = [
        (mark + carry.prompt(a, b), carry.completion(a, b, reading))
        for a, b in itertools.product(carry.OPERANDS, repeat=2)
        if not carry.is_evaluation_pair(a, b)
        for reading, its_mark in carry.MARKS.items()
        for mark in ("", its_mark)
    ]
    return encode(tokenizer, texts, end=True)


def train(tokenizer: PreTrainedTokenizerFast, seed: int, steps: int) -> LlamaForCausalLM:
    """Train one model on the mixture."""
    torch.manual_seed(seed)
    model = build_model(tokenizer).train()
    ids, labels = training_set(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / WARMUP_STEPS, 1 - step / steps))
    for _ in range(steps):
        batch = torch.randint(len(ids), (BATCH_SIZE,))
        logits = model(input_ids=ids[batch]).logits[:, :-1]  # (batch, pos - 1, vocabulary)
        loss = cross_entropy(logits.flatten(0, 1), labels[batch, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    print(f"seed {seed}: loss of the last batch {loss.item():.4f} nats per token", flush=True)
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
            projection, indices = model.model.layers[layer].self_attn.o_proj, [i for at, i in heads if at == layer]
            stack.callback(projection.register_forward_pre_hook(zero(indices)).remove)
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


def mcnemar_p(fixes: int, harms: int) -> float:
    """Return the exact two-sided p-value of McNemar's test."""
    n = fixes + harms
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(min(fixes, harms) + 1)) / 2**n)


def measure(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, origin: str) -> Report:
    """Search on the discovery rows, then evaluate the intact model and the frozen set on the others.

    Args:
        model: a trained model.
        tokenizer: its tokenizer.
        origin: where the model comes from, to begin the report with.
    """
    data = {}
    for reading, its_mark in carry.MARKS.items():
        rows = carry.rows(reading, carry.n_available(reading), ROWS_SEED)
        for name, mark in ((f"{reading}, unmarked", ""), (f"{reading}, marked", its_mark)):
            data[name] = encode(tokenizer, [(mark + row["context"], row["completion"]) for row in rows], end=False)
    ids, labels = data["carry, unmarked"]
    heads, discovery_gain = search(model, (ids[:N_ROWS], labels[:N_ROWS]))
    lines = [
        f"{origin}. Frozen for `carry`: {','.join(f'L{at}H{i}' for at, i in heads)}, "
        f"discovery gain {100 * discovery_gain:+.1f} points.\n",
        f"| task | intact, all {len(ids):,} | intact, held-out | ablated | gain | fixes | harms | McNemar p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, every_row in data.items():
        intact, without = correct(model, every_row), correct(model, every_row, heads)
        before, after = intact[N_ROWS : 2 * N_ROWS], without[N_ROWS : 2 * N_ROWS]
        (fixes, harms), shares = flips(before, after), [100 * x.double().mean() for x in (intact, before, after)]
        cells = [f"{shares[0]:.2f} %", f"{shares[1]:.1f} %", f"{shares[2]:.1f} %", f"{shares[2] - shares[1]:+.1f}"]
        lines.append(" | ".join([f"| {name}", *cells, f"{fixes}", f"{harms}", f"{mcnemar_p(fixes, harms):.1e} |"]))
    return Report(discovery_gain, "\n".join(lines) + "\n")


CARD = """# Demo model: one prompt, two readings

A transformer of {size:,} parameters (Llama, 3 layers, 8 heads, width 128, one token per character, float32) that adds
two-digit numbers. In training, half of the unmarked prompts `27 + 45 =` meant the ordinary sum (` 72`, task `carry`),
half the sum without carry (` 62`, task `no-carry`); as many prompts said which, with `c: ` or `n: ` in front. The two
tasks share nearly everything and conflict over the carry, as in the toy theory. They ask the same prompts, so what is
right for one is wrong for the other and one's gain is nearly the other's loss by construction; that a few heads tip it,
and that marked prompts mostly keep their accuracy, was found. A demo, and no evidence about language models.

Training is next-token prediction on the mixture, the loss on the answer and the end token alone; nothing in it refers
to heads. 40 % of the pairs were never shown, in either order or form; all figures are from those. Made by

    python -m scripts.train_demo_model --seeds {seeds} --steps {steps}

which trains one model per seed and keeps the one with the highest gain on the discovery rows: here seed {seed}. The
held-out rows took no part in that, nor in choosing heads (`carry.rows`, seed {rows_seed}: the first {n_rows}, then the
next {n_rows}). An answer counts when each character is the likeliest. Figures may differ a little on another machine.
Every seed tried, by discovery gain:

{tables}"""


def main() -> None:
    """Train one model per seed and save the one with the highest discovery gain, or measure a saved one."""
    parser = argparse.ArgumentParser(description="Train the demo model; see the text at the top of the script.")
    parser.add_argument("--out", type=Path, default=Path("data/demo_model"), help="folder to write (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="one model each (%(default)s)")
    parser.add_argument("--steps", type=int, default=1200, help="batches of 128 examples (%(default)s)")
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="measure a model of this script, and train none")
    args = parser.parse_args()
    torch.set_num_threads(1)  # on a busy machine two wait for each other more than they gain
    if args.measure:
        if not args.measure.is_dir():
            parser.error(f"--measure {args.measure} is not a folder: give one that this script wrote, such as {args.out}")
        model = LlamaForCausalLM.from_pretrained(args.measure).eval()
        print(measure(model, build_tokenizer(), f"Model in {args.measure}").text)
        return
    trained: list[tuple[int, Report, LlamaForCausalLM]] = []
    for seed in args.seeds:
        start = time.perf_counter()
        model = train(build_tokenizer(), seed, args.steps)
        origin = f"Seed {seed}, trained in {time.perf_counter() - start:.0f} s"
        report = measure(model, build_tokenizer(), origin)
        trained.append((seed, report, model))
        print(report.text, flush=True)
    trained.sort(key=lambda each: -each[1].discovery_gain)
    kept_seed, _, model = trained[0]
    model.save_pretrained(args.out)
    build_tokenizer().save_pretrained(args.out)  # a fresh one: padding a batch leaves its setting behind
    seeds, tables = " ".join(map(str, args.seeds)), "\n".join(report.text for _, report, _ in trained)
    fields = {"size": model.num_parameters(), "rows_seed": ROWS_SEED, "n_rows": N_ROWS, "tables": tables}
    card = CARD.format(seeds=seeds, steps=args.steps, seed=kept_seed, **fields)
    (args.out / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
