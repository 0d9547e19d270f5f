import pytest

from cel_core.errors import ModelError
from cel_core.prompts import chat_prompt, encode, encode_request
from tests.conftest import byte_tokenizer


class MergingTokenizer:
    """Reads 'ab' as one token, so that a continuation can merge with the last letter of its context."""

    bos_token = eos_token = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        tokens, rest = [], text
        while rest:
            size = 2 if rest.startswith("ab") else 1
            tokens.append(sum(map(ord, rest[:size])))
            rest = rest[size:]
        return tokens


def test_a_trailing_blank_of_the_context_scores_as_if_moved():
    tokenizer = byte_tokenizer()
    assert encode_request(tokenizer, "Answer: ", "143", 99) == encode_request(tokenizer, "Answer:", " 143", 99)


def test_context_and_continuation_are_the_whole_text():
    request = encode_request(byte_tokenizer(), "Answer:", " yes", 99)
    assert request.context + request.continuation == tuple(byte_tokenizer().encode("Answer: yes"))
    assert len(request.continuation) == 4


def test_a_continuation_that_merges_with_the_context_is_scored_from_the_first_token_that_differs():
    request = encode_request(MergingTokenizer(), "xa", "b", 99)
    assert request.context == (ord("x"),)
    assert request.continuation == (ord("a") + ord("b"),)


def test_a_context_too_long_loses_tokens_on_its_left():
    request = encode_request(byte_tokenizer(), "a" * 50 + "bc", " d", 10)
    whole = byte_tokenizer().encode("a" * 50 + "bc d")
    assert request.context + request.continuation == tuple(whole[-11:])
    assert request.continuation == tuple(whole[-2:])


def test_there_is_one_bos_with_and_without_template():
    tokenizer = byte_tokenizer()
    tokenizer.add_bos_token = True
    bos = tokenizer.bos_token_id
    plain = encode(tokenizer, "hello")
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    templated = encode(tokenizer, chat_prompt(tokenizer, "hello"))
    assert plain.count(bos) <= 1
    assert templated.count(bos) == 1
    assert tokenizer.decode(templated[1:]) == "[hello]>"


def test_thinking_is_switched_off_where_the_template_knows_the_switch():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% if enable_thinking %}think{% else %}answer{% endif %}"
    assert chat_prompt(tokenizer, "hello") == "answer"


def test_a_missing_template_is_said():
    with pytest.raises(ModelError, match="no chat template: leave out --chat-template"):
        chat_prompt(byte_tokenizer(), "hello")
