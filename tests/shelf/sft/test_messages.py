"""Messages: ShareGPT's form gives the same sequences as role and content, and contents are text or known parts."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from packhorse.sft import ChatEncoder, encode_chat
from packhorse.sft.forms.sharegpt import as_messages

SHAREGPT = [
    {"from": "system", "value": "be kind"},
    {"from": "human", "value": "hi"},
    {"from": "gpt", "value": "hello", "train": False},
    {"from": "human", "value": "again"},
    {"from": "gpt", "value": "hello again"},
]
MESSAGES = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello", "train": False},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "hello again"},
]


def test_a_conversation_becomes_messages() -> None:
    assert as_messages(SHAREGPT) == MESSAGES
    assert as_messages(MESSAGES) is MESSAGES
    of_a_table = [{"weight": None, **message} for message in SHAREGPT]  # a column has every key of every row
    assert as_messages(of_a_table) == [{**message, "weight": None} for message in MESSAGES]
    for missing in (None, ""):
        of_both_forms = [{**message, "role": missing, "content": missing} for message in SHAREGPT]
        assert as_messages(of_both_forms) == MESSAGES
    twice = [{**message, "content": message["value"]} for message in SHAREGPT]
    assert as_messages(twice) == MESSAGES
    with pytest.raises(ValueError, match="message 0 has words in 'value' and others in 'content'"):
        as_messages([{"from": "human", "value": "hi", "content": "other"}])


def test_it_is_encoded_as_its_messages_are() -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "hello": 1, "again": 2, "end": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for m in messages %}{{ m.role }} {{ m.content }} end {% endfor %}"
    ours = encode_chat(SHAREGPT, tokenizer, chat_template=template)
    theirs = encode_chat(MESSAGES, tokenizer, chat_template=template)
    assert ours.input_ids.tolist() == theirs.input_ids.tolist()
    assert ours.loss_mask.tolist() == theirs.loss_mask.tolist()
    assert ours.num_trained_tokens == 3  # hello again end


@pytest.mark.parametrize("as_list", [True, False])
def test_calls_and_observations(as_list: bool) -> None:
    call: Any = {"name": "add", "arguments": {"a": 1}}
    words = json.dumps([call] if as_list else call)
    found = as_messages([{"from": "function_call", "value": words}, {"from": "observation", "value": "2"}])
    assert found == [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": "2"},
    ]


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        ({"from": "alien", "value": "x"}, "message 0 is from 'alien'; in ShareGPT's form it is from one of human, "),
        ({"from": "function_call", "value": "{"}, "message 0 is a function_call that is not JSON: .* at column 2"),
        ({"from": "function_call", "value": "[3]"}, "message 0 is a function_call without a name"),
    ],
)
def test_what_is_not_known_is_refused(message: dict[str, str], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        as_messages([message])


PLAIN = "{% for m in messages %}{{ m.role }} {{ m.content }} end {% endfor %}"
STRICT = "{% for m in messages %}{{ m.role + ' ' + m.content }} end {% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m.role }} {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    " end {% endfor %}"
)
HELLO = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
IMAGE = [{"type": "image", "image": "x.png"}, {"type": "text", "text": "hi"}]


def rendered(template: str, *contents: Any) -> str:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "end": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return ChatEncoder(tokenizer, chat_template=template).render(messages).text


@pytest.mark.parametrize("template", [PLAIN, STRICT, PARTS])
def test_parts_of_text_are_text_in_every_template(template: str) -> None:
    assert rendered(template, HELLO, "a") == rendered(template, "hello", "a")
    assert rendered(template, "q", HELLO) == rendered(template, "q", "hello")


def test_other_parts_are_left_to_a_template_that_knows_them() -> None:
    assert rendered(PARTS, IMAGE, "a") == "user <image>hi end assistant a end "
    for template in (PLAIN, STRICT):
        with pytest.raises(ValueError, match="message 0 holds a part of type 'image'"):
            rendered(template, IMAGE, "a")


def test_a_mapping_is_left_to_a_template_that_knows_it() -> None:
    template = "{% for m in messages %}{{ m.content if m.content is string else m.content | tojson }} end {% endfor %}"
    assert rendered(template, {"a": 1}, "b") == '{"a": 1} end b end '
    with pytest.raises(ValueError, match="message 0 has a content that is a mapping"):
        rendered(PLAIN, {"a": 1}, "b")


@pytest.mark.parametrize("content", [None, 5, True, ["x"], [{"text": "x"}], [{"type": "text"}]])
def test_what_says_nothing_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"message 1, of the assistant, has (no|a) (content|part)"):
        rendered(PLAIN, "q", content)


def test_an_answer_without_content_that_calls_or_thinks_is_one() -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    template = "{% for m in messages %}{{ m.role }} {{ m.tool_calls }} {{ m.thinking }} end {% endfor %}"
    for said in ({"tool_calls": [{"name": "f"}]}, {"thinking": "hm"}):
        answer = {"role": "assistant", "content": None, **said}
        encoder = ChatEncoder(tokenizer, chat_template="{% generation %}" + template + "{% endgeneration %}")
        assert encoder.render([{"role": "user", "content": "q"}, answer]).text


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content | trim }}",
        "{{ m.role ~ m.content }}",
        "{{ 'user' if m.content is string else '' }}{{ m.content if m.content is string else '' }}",
    ],
)
def test_parts_that_a_template_prints_or_drops_are_joined_even_if_their_words_stand_elsewhere(content: str) -> None:
    """Neither Python's own form of a list is trained, nor an empty turn."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    template = f"{{% for m in messages %}}{{{{ m.role }}}}: {content} end {{% endfor %}}"
    encoder = ChatEncoder(tokenizer, chat_template=template)
    parts = [{"type": "text", "text": "user "}, {"type": "text", "text": "end"}]
    chats = [[{"role": "user", "content": own}, {"role": "assistant", "content": own}] for own in (parts, "user end")]
    in_parts, in_text = (encoder.render(chat) for chat in chats)
    assert in_parts.text == in_text.text
    assert in_parts.turns == in_text.turns
    assert not in_parts.unused
    with pytest.raises(ValueError, match="part of type 'image'"):
        encoder.render([{"role": "user", "content": [*parts, {"type": "image", "image": "end"}]}, chats[1][1]])


def test_results_of_functions_are_those_of_tools_if_the_template_knows_only_these() -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    told = [{"role": "function", "name": "f", "content": "sun"}, {"role": "assistant", "content": "b"}]
    for known, written in (("tool", "tool: sun"), ("function", "function: sun")):
        template = (
            f"{{% for m in messages %}}{{% if m.role in ('{known}', 'assistant') %}}"
            "{{ m.role }}: {{ m.content }} {% endif %}{% endfor %}"
        )
        rendered = ChatEncoder(tokenizer, chat_template=template).render(told)
        assert rendered.text == f"{written} assistant: b "
        assert dict(rendered.unused) == {"messages.name": 1}


def test_a_call_that_becomes_a_function_takes_only_its_name_and_arguments_along() -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    template = (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %} end {% endfor %}"
    )
    call = {"type": "function", "id": "a", "name": "add", "arguments": {"a": 1}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    rendered = ChatEncoder(tokenizer, chat_template=template).render([message])
    assert rendered.text == '{"name": "add", "arguments": {"a": 1}} end '


@pytest.mark.parametrize("beside", ["", " ", "hm"])
def test_reasoning_in_a_part_is_not_lost_to_that_beside_it(beside: str) -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    template = "{% for m in messages %}{{ m.role + ' ' + m.thinking + ' ' + m.content }} end {% endfor %}"
    encoder = ChatEncoder(tokenizer, chat_template=template)
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]
    message = {"role": "assistant", "thinking": beside, "content": parts}
    rendered = encoder.render([message])
    assert (rendered.text, dict(rendered.unused)) == ("assistant hm yes end ", {})
    with pytest.raises(ValueError, match="another reasoning in its content than beside it"):
        encoder.render([{**message, "thinking": "well"}])


def test_a_value_that_an_operation_hides_is_used_though_nothing_shows_it() -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    template = "{% for m in messages %}{{ m.content | escape | reverse }}{{ m.name | length }}{{ m.other }}{% endfor %}"
    encoder = ChatEncoder(tokenizer, chat_template=template + "{% generation %}x{% endgeneration %}")
    message = {"role": "assistant", "content": "ab", "name": "Anna", "other": "c", "more": "x", "less": "q"}
    assert set(encoder.render([message]).unused) == {"messages.more", "messages.less"}
