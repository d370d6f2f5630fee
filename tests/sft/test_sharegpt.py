"""Conversations in ShareGPT's form: the same sequences as role and content give, and what is refused."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from packhorse.sft import encode_chat
from packhorse.sft.sharegpt import as_messages

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
