"""Chats: tokens against transformers' own, trained tokens against what the assistant said, in five families' styles."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from packhorse.sft import EncodedSequence, NoTargetsError, encode_chat

Source = Callable[[str], str]
Message = dict[str, Any]

# Family -> what a turn of the given content teaches, in the last turn and in earlier ones.
TAUGHT: dict[str, Callable[[str, bool], str]] = {
    "chatml": lambda content, _: content + "<|im_end|>",
    "llama3": lambda content, _: content.strip() + "<|eot_id|>",
    "mistral": lambda content, _: content + "</s>",
    "gemma": lambda content, _: content.strip() + "<end_of_turn>",
    "qwen3": lambda content, is_last: ("<think>\n\n</think>\n\n" if is_last else "") + content + "<|im_end|>",
    "prefilled": lambda content, _: content + "</s>",
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
WITH_TOOLS = [
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "No more."},
]
both = pytest.mark.parametrize("kind", ["marked", "unmarked"])
families = pytest.mark.parametrize("family", TAUGHT)

# Contents that begin with white space may share a token with their header; a test of its own looks at those.
said = st.text("aé🐎 \n.?<|1", max_size=12).map(str.lstrip)
conversations = st.lists(st.tuples(said, said), min_size=1, max_size=4)


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    """Function: the template of a family, "marked" or "unmarked"."""
    return lambda kind, family: request.getfixturevalue(kind)(family)


def turns(*pairs: tuple[str, str]) -> list[Message]:
    return [
        {"role": role, "content": content}
        for pair in pairs
        for role, content in zip(("user", "assistant"), pair, strict=True)
    ]


def taught(model: Tokenizer, encoded: EncodedSequence) -> list[str]:
    """The text of each run of trained tokens."""
    edges = np.flatnonzero(np.diff(encoded.loss_mask, prepend=False, append=False)).tolist()
    return [
        model.decode(encoded.input_ids[begin:end].tolist(), skip_special_tokens=False)
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
    ]


@both
@families
@given(pairs=conversations)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_exactly_what_the_assistant_says_is_trained_on(
    source: Callable[[str, str], str],
    fast: PreTrainedTokenizerFast,
    model: Tokenizer,
    kind: str,
    family: str,
    pairs: list[tuple[str, str]],
) -> None:
    encoded = encode_chat(turns(*pairs), fast, chat_template=source(kind, family))
    last = len(pairs) - 1
    assert taught(model, encoded) == [TAUGHT[family](answer, i == last) for i, (_, answer) in enumerate(pairs)]
    assert encoded.input_ids.dtype == np.int32
    assert encoded.loss_mask.dtype == np.bool_


@both
@families
@given(pairs=conversations, system=st.none() | said)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_tokens_are_those_of_transformers(
    source: Callable[[str, str], str],
    fast: PreTrainedTokenizerFast,
    kind: str,
    family: str,
    pairs: list[tuple[str, str]],
    system: str | None,
) -> None:
    messages = turns(*pairs) if system is None else [{"role": "system", "content": system}, *turns(*pairs)]
    template = source(kind, family)
    theirs = fast.apply_chat_template(messages, chat_template=template, return_dict=True)["input_ids"]
    assert encode_chat(messages, fast, chat_template=template).input_ids.tolist() == theirs


@families
@given(pairs=conversations)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_marks_prefixes_and_transformers_agree_on_the_mask(
    marked: Source, unmarked: Source, fast: PreTrainedTokenizerFast, family: str, pairs: list[tuple[str, str]]
) -> None:
    by_marks = encode_chat(turns(*pairs), fast, chat_template=marked(family))
    by_search = encode_chat(turns(*pairs), fast, chat_template=unmarked(family))
    np.testing.assert_array_equal(by_marks.input_ids, by_search.input_ids)
    np.testing.assert_array_equal(by_marks.loss_mask, by_search.loss_mask)
    theirs = fast.apply_chat_template(
        turns(*pairs), chat_template=marked(family), return_dict=True, return_assistant_tokens_mask=True
    )
    assert by_marks.loss_mask.astype(int).tolist() == theirs["assistant_masks"]


@both
@pytest.mark.parametrize(
    ("family", "answers"),
    [
        (
            "chatml",
            [
                '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>',
                "It is 2.<|im_end|>",
                "No more.<|im_end|>",
            ],
        ),
        (
            "mistral",
            [
                '[TOOL_CALLS][{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]</s>',
                "It is 2.</s>",
                "No more.</s>",
            ],
        ),
    ],
)
def test_tool_calls_are_trained_on_and_their_results_are_not(
    source: Callable[[str, str], str],
    fast: PreTrainedTokenizerFast,
    model: Tokenizer,
    kind: str,
    family: str,
    answers: list[str],
) -> None:
    template = source(kind, family)
    encoded = encode_chat(WITH_TOOLS, fast, chat_template=template, tools=TOOLS)
    assert taught(model, encoded) == answers
    theirs = fast.apply_chat_template(WITH_TOOLS, tools=TOOLS, chat_template=template, return_dict=True)["input_ids"]
    assert encoded.input_ids.tolist() == theirs


@both
@pytest.mark.parametrize("separate", [False, True])
def test_thinking_that_the_template_strips_from_earlier_turns(
    source: Callable[[str, str], str], fast: PreTrainedTokenizerFast, model: Tokenizer, kind: str, separate: bool
) -> None:
    messages = turns(("Q1", "A1"), ("Q2", "A2"))
    for message, thought in ((messages[1], "one"), (messages[3], "two")):
        if separate:
            message["reasoning"] = thought
        else:
            message["content"] = f"<think>\n{thought}\n</think>\n\n{message['content']}"
    encoded = encode_chat(messages, fast, chat_template=source(kind, "qwen3"))
    assert taught(model, encoded) == ["A1<|im_end|>", "<think>\ntwo\n</think>\n\nA2<|im_end|>"]


def test_a_header_that_no_generation_prompt_writes_is_not_trained_on(
    fast: PreTrainedTokenizerFast, model: Tokenizer
) -> None:
    template = "{% for m in messages %}{{ '<|' + m.role + '|>: ' + m.content + '</s>' }}{% endfor %}"
    messages = turns(("Hello", "Good"), ("Hello", "Bye"))
    assert taught(model, encode_chat(messages, fast, chat_template=template)) == ["Good</s>", "Bye</s>"]


def test_a_token_that_straddles_the_edge_is_trained_on(fast: PreTrainedTokenizerFast, model: Tokenizer) -> None:
    marked = "Q: {{ messages[0].content }}\nHe{% generation %}{{ messages[1].content }}{% endgeneration %}re."
    unmarked = (
        "{% for m in messages %}{{ ('Q: ' if m.role == 'user' else '\nHe') + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}\nHe{% else %}re.{% endif %}"
    )
    assert "Hello" in model.get_vocab()
    for template, text in ((marked, "Hello there"), (unmarked, "Hello there.")):
        encoded = encode_chat(turns(("?", "llo the")), fast, chat_template=template)
        assert taught(model, encoded) == [text]
    theirs = fast.apply_chat_template(
        turns(("?", "llo the")), chat_template=marked, return_dict=True, return_assistant_tokens_mask=True
    )
    encoded = encode_chat(turns(("?", "llo the")), fast, chat_template=marked)
    assert theirs["assistant_masks"] == encoded.loss_mask.astype(int).tolist()


@both
@families
@pytest.mark.parametrize("flag", [{"train": False}, {"weight": 0}])
def test_marked_messages_and_all_but_the_last_can_be_left_out(
    source: Callable[[str, str], str],
    fast: PreTrainedTokenizerFast,
    model: Tokenizer,
    kind: str,
    family: str,
    flag: Message,
) -> None:
    template = source(kind, family)
    messages = turns(("Q1", "first"), ("Q2", "second"), ("Q3", "third"))
    plain = encode_chat(messages, fast, chat_template=template)
    messages[3] |= flag
    some = encode_chat(messages, fast, chat_template=template)
    answers = [TAUGHT[family](text, text == "third") for text in ("first", "second", "third")]
    np.testing.assert_array_equal(some.input_ids, plain.input_ids)
    assert taught(model, some) == [answers[0], answers[2]]
    last = encode_chat(messages, fast, chat_template=template, train_turns="last")
    np.testing.assert_array_equal(last.input_ids, plain.input_ids)
    assert taught(model, last) == answers[2:]
    messages[5] |= flag
    with pytest.raises(NoTargetsError, match="train: false or weight: 0"):
        encode_chat(messages, fast, chat_template=template, train_turns="last")


def test_other_roles_may_be_the_models(fast: PreTrainedTokenizerFast, model: Tokenizer) -> None:
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    messages = [{"role": "human", "content": "Hello"}, {"role": "gpt", "content": "Good"}]
    encoded = encode_chat(messages, fast, chat_template=template, train_on=("gpt", "model"))
    assert taught(model, encoded) == ["Good<|im_end|>"]
    with pytest.raises(NoTargetsError):
        encode_chat(messages, fast, chat_template=template)


def test_content_in_parts(fast: PreTrainedTokenizerFast, model: Tokenizer) -> None:
    template = (
        "{{ messages | length }}{% for m in messages %}{{ '<|' + m.role + '|>' }}"
        "{% for part in m.content %}{{ part.text }}{% endfor %}{{ '</s>' }}{% endfor %}"
    )
    messages = turns(("Q", "A"), ("Q", "B"))
    for message in messages:
        message["content"] = [{"type": "text", "text": message["content"]}]
    assert taught(model, encode_chat(messages, fast, chat_template=template)) == ["A</s>", "B</s>"]


PAIRS = "{% for pair in messages | batch(2) %}Q: {{ pair[0].content }} A: {{ pair[1].content }}</s>{% endfor %}"


def test_a_template_without_a_loop_over_messages_shows_its_turns_by_prefixes(
    fast: PreTrainedTokenizerFast, model: Tokenizer
) -> None:
    messages = turns(("Hello", "Good"), ("Hello", "Bye"))
    assert taught(model, encode_chat(messages, fast, chat_template=PAIRS)) == ["Good</s>", "Bye</s>"]
    single = "{{ messages[0].content }}<|user|>{{ messages[1].content + eos_token }}"
    assert taught(model, encode_chat(messages[:2], fast, chat_template=single)) == ["Good</s>"]


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ messages | length }}" + PAIRS, "the text up to it is no prefix"),
        (PAIRS.replace("A: ", "A: {{ pair[1].content[:1] }} {{ pair[0].content }}"), "words of message 0 stand"),
        (
            "{% set ns = namespace(text='') %}{% for m in messages %}"
            "{% if m.role == 'user' %}{{ ns.text }}{{ m.content }}{% else %}{{ m.content[:1] }}{% endif %}"
            "{% set ns.text = '<' + m.content + '>' %}{% endfor %}",
            "words of message",
        ),
    ],
)
def test_a_template_that_does_not_show_its_turns_is_refused_with_the_way_out(
    fast: PreTrainedTokenizerFast, template: str, why: str
) -> None:
    messages = turns(("What is it?", "A very long answer"), ("Q", "B"))
    with pytest.raises(ValueError, match=rf"model's turn in message \d is: .*{why}.*\{{% generation %\}}"):
        encode_chat(messages, fast, chat_template=template)


def test_mistakes_are_named(fast: PreTrainedTokenizerFast, unmarked: Source) -> None:
    chatml = unmarked("chatml")

    def refused(messages: Any, match: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=match):
            encode_chat(messages, fast, **{"chat_template": chatml, **options})

    good = turns(("Q", "A"))
    refused([], "at least one message")
    refused("hello", "at least one message")
    refused([{"by": "human", "said": "Q"}], r"message 0 needs a role and a content; it has \['by', 'said'\]")
    refused([{"role": "user", "content": object()}], "message 0 holds a value of type object")
    refused([{"role": "user", "content": "\ud800"}], "message 0 has no UTF-8 form")
    refused([{"role": "user", "content": "\ufdd2"}], r"message 0 holds U\+FDD2")
    refused([*good, {"role": "assistant", "content": "A", "train": "no"}], "message 2: train is 'no'")
    refused([*good, {"role": "assistant", "content": "A", "weight": 0.5}], "message 2: weight is 0.5")
    refused(good, "train_on names 'system'", train_on=("assistant", "system"))
    refused(good, "train_on is 'assistant'", train_on="assistant")
    refused(good, "train_turns is 'first'", train_turns="first")
    refused(good, "max_tokens is 1", max_tokens=1)
    refused(good, "tools must be a list of JSON schemas", tools=[print])
    refused(good, "no chat template; give one", chat_template=None)
    refused(good, "is not a Jinja template", chat_template="{% for %}")
    refused(good, "does not render this conversation: no", chat_template="{{ raise_exception('no') }}")
    refused(good[:1], "no turn of a trained role")


def test_special_tokens_in_a_chat_are_counted_as_the_tokenizer_reads_them(
    fast: PreTrainedTokenizerFast, model: Tokenizer, unmarked: Source
) -> None:
    messages = turns(("Q", "before <|im_end|> after"))
    encoded = encode_chat(messages, fast, chat_template=unmarked("chatml"))
    assert taught(model, encoded) == ["before <|im_end|> after<|im_end|>"]
