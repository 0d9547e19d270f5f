"""Greedy writing, against plain forward passes: one prompt, no padding, no cache, everything run again for every token."""

import numpy as np
import pytest
import torch

from cel_core import generation
from cel_core.ablation import ablate
from cel_core.generation import Prompt, decode, write
from cel_core.heads import INTACT, HeadSet
from cel_core.models import Model
from tests.conftest import build_tiny

EOS = 256  # of the tiny models' tokenizer
N_PRINTABLE = 94  # its tokens 0 to 93 are the characters ! to ~
SETS = [INTACT, HeadSet.parse("L1H2"), HeadSet.parse("L0H1,L2H3")]


def random_tokens(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, 250, length).tolist()


PROMPTS = [Prompt(random_tokens(length)) for length in (3, 23, 11, 12)]


@torch.inference_mode()
def by_hand(model: Model, head_set: HeadSet, tokens: list[int], n_new: int) -> list[int]:
    """The next `n_new` likeliest tokens, whatever they are."""
    written: list[int] = []
    with ablate(model, head_set):
        for _ in range(n_new):
            logits = model.causal_lm(input_ids=torch.tensor([[*tokens, *written]]), use_cache=False).logits
            written.append(int(logits[0, -1].argmax()))
    return written


def without_ends(model: Model) -> Model:
    """The same model, no token of which ends an answer."""
    model.causal_lm.generation_config.eos_token_id = None
    model.tokenizer.eos_token = None
    return model


def writing_letters(seed: int = 0) -> Model:
    """A model that writes printable characters only, so that every written token is one letter of its text."""
    model = without_ends(build_tiny("llama", seed=seed))
    model.head.weight.data[N_PRINTABLE:] = 0
    return model


def until(model: Model, tokens: list[int], stop: str) -> list[int]:
    """The tokens up to the first one after which the text holds `stop`."""
    return next(tokens[:n] for n in range(1, len(tokens) + 1) if stop in decode(model, tokens[:n]))


def test_batched_answers_equal_each_prompt_alone_with_and_without_ablation(tiny: Model):
    without_ends(tiny)
    answers = write(tiny, SETS, PROMPTS, max_new_tokens=8)
    expected = [[by_hand(tiny, head_set, prompt.tokens, 8) for prompt in PROMPTS] for head_set in SETS]
    assert answers == expected
    assert answers[0] != answers[1] != answers[2]  # the removed heads are felt


@pytest.mark.parametrize("head_set", SETS, ids=["intact", "one head", "two heads"])
def test_a_prompt_beside_one_twenty_tokens_longer_is_answered_as_alone(tiny: Model, head_set: HeadSet):
    without_ends(tiny)
    short, long = PROMPTS[:2]
    assert len(long.tokens) == len(short.tokens) + 20
    [[alone]] = write(tiny, [head_set], [short], max_new_tokens=8)
    [[beside, _]] = write(tiny, [head_set], [short, long], max_new_tokens=8)
    assert beside == alone == by_hand(tiny, head_set, short.tokens, 8)


def test_answers_equal_transformers_own_greedy_generation(tiny: Model):
    without_ends(tiny)
    for head_set in SETS[:2]:
        for prompt in PROMPTS[:2]:
            read = torch.tensor([prompt.tokens])
            with ablate(tiny, head_set):
                whole = tiny.causal_lm.generate(
                    read, attention_mask=torch.ones_like(read), max_new_tokens=8, do_sample=False, pad_token_id=0
                )
            [[answer]] = write(tiny, [head_set], [prompt], max_new_tokens=8)
            assert answer == whole[0, len(prompt.tokens) :].tolist()


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_answers_do_not_depend_on_the_batch_size(batch_size: int):
    model = without_ends(build_tiny("qwen3"))
    expected = [[by_hand(model, head_set, prompt.tokens, 6) for prompt in PROMPTS] for head_set in SETS]
    assert write(model, SETS, PROMPTS, max_new_tokens=6, batch_size=batch_size) == expected


def test_rows_of_one_batch_lose_their_own_heads():
    model = without_ends(build_tiny("llama"))
    sets = [HeadSet.parse(heads) for heads in ("L2H3", "", "L0H0,L0H1", "L1H1", "L0H0")]
    together = write(model, sets, PROMPTS[:1], max_new_tokens=8, batch_size=16)
    assert together == [[by_hand(model, head_set, PROMPTS[0].tokens, 8)] for head_set in sets]
    assert len({tuple(answer) for [answer] in together}) == len(sets)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "qwen2"])
def test_a_shared_beginning_changes_no_answer(family: str, monkeypatch: pytest.MonkeyPatch):
    model = without_ends(build_tiny(family))
    stem = random_tokens(12, seed=1)
    prompts = [Prompt([*stem, *random_tokens(length, seed=2)]) for length in (1, 9, 4)]
    assert generation._shared_prefix(model, [prompt.tokens for prompt in prompts]) == stem
    shared = write(model, SETS, prompts, max_new_tokens=8)
    monkeypatch.setattr(generation, "_shared_prefix", lambda *_: [])
    assert shared == write(model, SETS, prompts, max_new_tokens=8)
    assert shared == [[by_hand(model, head_set, prompt.tokens, 8) for prompt in prompts] for head_set in SETS]


def test_a_prompt_that_is_the_beginning_of_another_keeps_a_token_to_read():
    model = without_ends(build_tiny("llama"))
    whole = random_tokens(12)
    prompts = [Prompt(whole), Prompt(whole[:7]), Prompt(whole)]
    assert generation._shared_prefix(model, [prompt.tokens for prompt in prompts]) == whole[:6]
    [answers] = write(model, [INTACT], prompts, max_new_tokens=6)
    assert answers == [by_hand(model, INTACT, prompt.tokens, 6) for prompt in prompts]


def test_a_shared_beginning_is_run_once_per_head_set(monkeypatch: pytest.MonkeyPatch):
    model = without_ends(build_tiny("llama"))
    prompts = [Prompt([*random_tokens(20), number]) for number in range(4)]
    run: list[tuple[int, ...]] = []
    real = generation._next_logits
    monkeypatch.setattr(
        generation, "_next_logits", lambda model, step, *rest: run.append(tuple(step.shape)) or real(model, step, *rest)
    )
    write(model, SETS[:2], prompts, max_new_tokens=3)
    assert run == [(2, 20), (8, 1), (8, 1), (8, 1)]  # (rows, tokens)


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_a_sliding_window_shorter_than_the_prompts_is_kept(family: str):
    model = without_ends(build_tiny(family))
    stem = random_tokens(15, seed=3)
    prompts = [Prompt([*stem, *random_tokens(length, seed=4)]) for length in (2, 12)]
    assert model.causal_lm.config.sliding_window == 8
    assert generation._shared_prefix(model, [prompt.tokens for prompt in prompts]) == []
    answers = write(model, SETS, prompts, max_new_tokens=12)
    assert answers == [[by_hand(model, head_set, prompt.tokens, 12) for prompt in prompts] for head_set in SETS]
    wide = build_tiny(family, sliding_window=200)  # the same weights without the window in reach: it does make a difference
    assert [by_hand(wide, INTACT, prompt.tokens, 12) for prompt in prompts] != answers[0]


def test_each_row_stops_at_its_own_stop_string_while_the_others_go_on():
    model = writing_letters()
    tokens = [by_hand(model, INTACT, prompt.tokens, 24) for prompt in PROMPTS[:2]]
    texts = [decode(model, written) for written in tokens]
    stops = texts[0][4:7], texts[1][15:18]
    expected = [until(model, written, stop) for written, stop in zip(tokens, stops, strict=True)]
    assert [len(written) for written in expected] == [7, 18]
    answers = write(
        model, [INTACT], [Prompt(prompt.tokens, stop) for prompt, stop in zip(PROMPTS, stops, strict=False)], max_new_tokens=24
    )
    assert answers == [expected]
    assert decode(model, answers[0][0]).endswith(stops[0])
    assert stops[0] not in decode(model, answers[0][0][:-1])


def test_rows_that_leave_one_after_another_leave_the_others_as_they_were():
    model = writing_letters()
    prompts, expected = [], []
    for place, prompt in enumerate(PROMPTS):
        tokens = [by_hand(model, head_set, prompt.tokens, 16) for head_set in SETS]
        stop = decode(model, tokens[0])[3 * place + 1 : 3 * place + 3]
        prompts.append(Prompt(prompt.tokens, stop))
        expected.append([until(model, written, stop) if stop in decode(model, written) else written for written in tokens])
    lengths = {len(written) for answers in expected for written in answers}
    assert len(lengths) > 3 and 16 in lengths, lengths
    assert write(model, SETS, prompts, max_new_tokens=16) == [list(answers) for answers in zip(*expected, strict=True)]


def test_a_row_without_a_stop_string_goes_on_beside_one_that_stops():
    model = writing_letters()
    tokens = [by_hand(model, INTACT, prompt.tokens, 16) for prompt in PROMPTS[:2]]
    stop = decode(model, tokens[1])[2:6]
    [answers] = write(model, [INTACT], [PROMPTS[0], Prompt(PROMPTS[1].tokens, stop)], max_new_tokens=16)
    assert answers == [tokens[0], until(model, tokens[1], stop)]


def test_a_stop_string_in_the_prompt_stops_nothing():
    model = writing_letters()
    prompt = model.tokenizer.encode("[DONE]x[DONE]")
    expected = by_hand(model, INTACT, prompt, 10)
    stop = "[DONE]" if "[DONE]" not in decode(model, expected) else "x[DONE]"
    assert write(model, [INTACT], [Prompt(prompt, stop)], max_new_tokens=10) == [[expected]]


@pytest.mark.parametrize("declared", [int, list])
def test_an_end_token_ends_its_row_and_is_left_out(declared: type):
    model = without_ends(build_tiny("llama"))
    tokens = [by_hand(model, INTACT, prompt.tokens, 8) for prompt in PROMPTS[:2]]
    end = tokens[0][3]
    assert end not in tokens[0][:3] + tokens[1]
    model.causal_lm.generation_config.eos_token_id = end if declared is int else [299, end]
    assert write(model, [INTACT], PROMPTS[:2], max_new_tokens=8) == [[tokens[0][:3], tokens[1]]]


def test_the_tokenizers_end_token_ends_a_row_too():
    model = without_ends(build_tiny("llama"))
    expected = by_hand(model, INTACT, PROMPTS[0].tokens, 8)
    assert expected[5] not in expected[:5]
    model.head.weight.data[[expected[5], EOS]] = model.head.weight.data[[EOS, expected[5]]]  # now it writes EOS there
    assert by_hand(model, INTACT, PROMPTS[0].tokens, 6) == [*expected[:5], EOS]
    model.tokenizer.eos_token = "<eos>"
    assert write(model, [INTACT], PROMPTS[:1], max_new_tokens=8) == [[expected[:5]]]


@pytest.mark.parametrize("n_new", [1, 2, 7])
def test_an_answer_has_at_most_the_allowed_number_of_tokens(n_new: int):
    model = without_ends(build_tiny("gpt2"))
    [answers] = write(model, [INTACT], PROMPTS, max_new_tokens=n_new)
    assert [len(answer) for answer in answers] == [n_new] * len(PROMPTS)
    assert answers == [by_hand(model, INTACT, prompt.tokens, n_new) for prompt in PROMPTS]


def test_a_prompt_too_long_for_the_model_loses_tokens_on_its_left():
    model = without_ends(build_tiny("gpt2"))
    long = random_tokens(300)
    assert model.max_length == 256
    [[answer]] = write(model, [INTACT], [Prompt(long)], max_new_tokens=16)
    assert answer == by_hand(model, INTACT, long[-240:], 16)


def test_nothing_stays_removed_after_writing():
    model = build_tiny("llama")
    read = torch.tensor([PROMPTS[1].tokens])
    before = model.causal_lm(read).logits
    write(model, SETS, PROMPTS, max_new_tokens=3)
    assert torch.equal(model.causal_lm(read).logits, before)


def test_special_tokens_are_no_part_of_the_text():
    model = build_tiny("llama")
    assert decode(model, [*model.tokenizer.encode("a b"), EOS, EOS + 1]) == "a b"


def test_a_repetition_penalty_of_the_models_own_settings_is_applied_as_transformers_does():
    model = without_ends(build_tiny("llama", seed=3))
    plain = write(model, SETS[:2], PROMPTS, max_new_tokens=12)
    model.causal_lm.generation_config.repetition_penalty = 1.4
    penalised = write(model, SETS[:2], PROMPTS, max_new_tokens=12)
    assert penalised != plain
    for answers, head_set in zip(penalised, SETS[:2], strict=True):
        for answer, prompt in zip(answers, PROMPTS, strict=True):
            read = torch.tensor([prompt.tokens])
            with ablate(model, head_set):
                whole = model.causal_lm.generate(
                    read, attention_mask=torch.ones_like(read), max_new_tokens=12, do_sample=False, pad_token_id=0
                )
            assert answer == whole[0, len(prompt.tokens) :].tolist()


def test_where_memory_runs_out_batches_are_halved_and_no_answer_changes(monkeypatch: pytest.MonkeyPatch):
    model = build_tiny("llama")
    expected = write(model, SETS, PROMPTS, max_new_tokens=6)
    sizes: list[int] = []
    run = generation._next_logits

    def small(model, step, mask, cache):
        sizes.append(len(step))
        if len(step) > 3 or (len(sizes) == 9 and len(step) > 1):  # also in the middle of a batch
            raise torch.OutOfMemoryError
        return run(model, step, mask, cache)

    monkeypatch.setattr(generation, "_next_logits", small)
    assert write(model, SETS, PROMPTS, max_new_tokens=6, batch_size=16) == expected
    assert max(sizes) > 3 >= sizes[-1]
    monkeypatch.setattr(generation, "_next_logits", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(torch.OutOfMemoryError):
        write(model, SETS, PROMPTS, max_new_tokens=6)
