"""From text to tokens, exactly as lm-evaluation-harness 0.4.13 does it.

A log-likelihood request is a context and a continuation. Blanks at the end of the context move to the front of the
continuation; the continuation's tokens are what ``encode(context + continuation)`` has beyond ``len(encode(context))``.
Special tokens are those the tokenizer adds by default, and none when the text already starts with the BOS token (a chat
template wrote it), so there is never a second one.
"""

import hashlib
from typing import Any, NamedTuple

from cel_core.errors import ModelError

# some templates write today's date into the prompt: it is pinned, so that an example reads the same on every day
_PINNED_DATE = "{%- macro strftime_now(format) -%}26 Jul 2024{%- endmacro -%}"
_NO_TEMPLATE = "this model's tokenizer has no chat template: leave out --chat-template"


class Request(NamedTuple):
    """Tokens to read and tokens to score."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Tokens of `text`, with the tokenizer's own special tokens unless the text starts with BOS already."""
    prefix = tokenizer.bos_token or tokenizer.eos_token
    if prefix and text.startswith(prefix):
        return tokenizer.encode(text, add_special_tokens=False)
    return tokenizer.encode(text)


def encode_request(tokenizer: Any, context: str, continuation: str, max_length: int) -> Request:
    """Tokens of a log-likelihood request.

    A context too long for the model loses tokens on its left. Where the continuation's first letters merge with the
    context's last token, so that no token is left to score, scoring starts at the first token that differs.
    """
    blanks = len(context) - len(context.rstrip())
    if blanks:
        context, continuation = context[:-blanks], context[-blanks:] + continuation
    whole, read = encode(tokenizer, context + continuation), encode(tokenizer, context)
    scored = whole[len(read) :]
    if not scored:
        shared = next((i for i, (a, b) in enumerate(zip(whole, read, strict=False)) if a != b), len(whole) - 1)
        read, scored = whole[:shared], whole[shared:]
    tokens = (read + scored)[-(max_length + 1) :]
    n_scored = min(len(scored), len(tokens) - 1)
    return Request(tuple(tokens[:-n_scored]), tuple(tokens[-n_scored:]))


def chat_prompt(tokenizer: Any, text: str) -> str:
    """`text` as one user turn in the model's chat template, thinking switched off where the template knows the switch.

    Raises:
        ModelError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ModelError(_NO_TEMPLATE)
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        chat_template=_PINNED_DATE + tokenizer.get_chat_template(),
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )


def template_hash(tokenizer: Any) -> str:
    """Identifies what the chat template writes around a text.

    Raises:
        ModelError: the tokenizer has none.
    """
    return hashlib.sha256(chat_prompt(tokenizer, "probe").encode()).hexdigest()[:16]
