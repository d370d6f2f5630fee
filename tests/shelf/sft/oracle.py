"""The oracle of masks: a template with `{% generation %}` around what the model writes, through transformers itself.

A shape of template is a file in `shapes`; its first comment says which chats it takes. Ours gets the same template
without the blocks' tags, and must find what they mark.
"""

import random
import re
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

Message = dict[str, Any]

SHAPES = sorted(path.stem for path in (Path(__file__).parent / "shapes").glob("*.jinja"))
NAMES = ("get_weather", "add", "assistant", "final")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"What {name} does.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}},
        },
    }
    for name in NAMES[:2]
]
WORDS = ("Hello", "yes", "the sum is 42!", "sunny", "Hello there, how are you?", "größer 🐎.", "a\n\nb", "</s>")
MARKS = (
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<think>",
    "</think>",
    "<|start|>assistant",
    "<|end|>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<|eot_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<start_of_turn>model\n",
    "[INST]",
    "<tool_call>",
    "<|user|>",
    "\n",
    " ",
    "",
)


class Answer(NamedTuple):
    """What transformers makes of a chat."""

    text: str
    input_ids: list[int]
    mask: list[int] | None
    """None if transformers has none: it counts the characters that it wrote when a block begins, captured or not."""


def source(shape: str) -> str:
    """The template of a shape, with its generation blocks."""
    return (Path(__file__).parent / "shapes" / f"{shape}.jinja").read_text()


def without_blocks(template: str) -> str:
    """A template without the tags of its generation blocks; white space around them stays as it was."""
    return re.sub(r"(\{%-?\s*)generation", r"\1if true", re.sub(r"(\{%-?\s*)endgeneration", r"\1endif", template))


def features(shape: str) -> set[str]:
    """Which chats a shape takes."""
    comment = re.match(r"\{#- chats: ([\w ]+) -#\}", source(shape))
    assert comment is not None, f"{shape} does not say which chats it takes"
    return set(comment[1].split())


def answer(tokenizer: PreTrainedTokenizerFast, shape: str, chat: dict[str, Any], **options: Any) -> Answer | None:
    """What transformers makes of a chat; None if the template refuses it."""
    given = {"chat_template": source(shape), "tools": chat.get("tools"), **options}
    try:
        text = tokenizer.apply_chat_template(chat["messages"], tokenize=False, **given)
        made = tokenizer.apply_chat_template(
            chat["messages"], return_dict=True, return_assistant_tokens_mask=True, **given
        )
    except Exception:  # whatever a template raises
        return None
    return Answer(text, made["input_ids"], None if "captured" in features(shape) else made["assistant_masks"])


def random_chat(shape: str, seed: int) -> dict[str, Any]:
    """A chat that a shape takes: messages and, now and then, tools."""
    takes, rng = features(shape), random.Random(f"{shape} {seed}")
    chat: dict[str, Any] = {"messages": _messages(takes, rng)}
    if "tools" in takes and rng.random() < 0.5:
        chat["tools"] = TOOLS
    return chat


def unusual_chat(shape: str, seed: int) -> dict[str, Any]:
    """A random chat out of the usual order: a speaker twice, the model alone, equal texts, nulls, no last answer."""
    chat, rng = random_chat(shape, -seed), random.Random(f"unusual {shape} {seed}")
    messages: list[Message] = chat["messages"]
    kind = rng.randrange(6)
    if kind == 0:
        role = rng.choice(("system", "user", "assistant"))
        messages.insert(rng.randrange(len(messages) + 1), {"role": role, "content": _words(rng)})
    elif kind == 1:
        messages = [message for message in messages if message["role"] == "assistant"]
    elif kind == 2:
        same = _words(rng)
        messages = [{**message, "content": same} for message in messages]
    elif kind == 3:
        messages.append({"role": "user", "content": _words(rng)})
    elif kind == 4:
        messages = messages[: rng.randrange(1, len(messages) + 1)]
    for message in messages[1:]:  # a first null may be written as a word, for which ours leaves nothing
        if message.get("tool_calls") and rng.random() < 0.2:
            message["content"] = None
        for key in {"thinking", "reasoning_content"} & message.keys():
            message[key] = _words(rng)
    return {**chat, "messages": messages}


def _messages(takes: set[str], rng: random.Random) -> list[Message]:
    repeated = _words(rng)
    messages: list[Message] = []

    def said(role: str) -> Any:
        text = repeated if rng.random() < 0.2 else _words(rng)
        if "parts" in takes and role != "tool" and rng.random() < 0.3:
            # Some templates read only the first part of what the system says.
            more = [{"type": "text", "text": _words(rng)}] * (rng.randrange(2) if role != "system" else 0)
            return [{"type": "text", "text": text}, *more]
        return text

    if rng.random() < 0.4:
        messages.append({"role": "system", "content": said("system")})
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": said("user")})
        if "calls" in takes or "single_calls" in takes:
            for _ in range(rng.choice((0, 0, 1, 1, 2))):
                messages += _call(takes, rng, said("assistant"))
        final: Message = {"role": "assistant", "content": said("assistant")}
        if "thinking_in_content" in takes and isinstance(final["content"], str) and rng.random() < 0.3:
            final["content"] = f"<think>\n{_words(rng)}\n</think>\n\n{final['content']}"
        if {"reasoning", "thinking"} & takes and rng.random() < 0.5:
            final["thinking" if "thinking" in takes else "reasoning_content"] = _words(rng)
        messages.append(final)
    return messages


def _call(takes: set[str], rng: random.Random, content: Any) -> list[Message]:
    number = 1 if "single_calls" in takes else rng.randrange(1, 4)
    calls = []
    for _ in range(number):
        arguments: Any = {"city": _words(rng), "n": rng.randrange(9), "deep": {"list": [1, _words(rng), None, True]}}
        arguments = {key: arguments[key] for key in arguments if rng.random() < 0.7}
        if "arguments_as_text" in takes:
            arguments = str(arguments).replace("'", '"')
        function = {"name": rng.choice(NAMES), "arguments": arguments}
        calls.append({"id": f"call{rng.randrange(10**5):05}", "type": "function", "function": function})
    message: Message = {"role": "assistant", "content": content if rng.random() < 0.5 else "", "tool_calls": calls}
    if "thinking" in takes and rng.random() < 0.6:
        message |= {"content": "", "thinking": _words(rng)}
    elif "reasoning" in takes and rng.random() < 0.5:
        message["reasoning_content"] = _words(rng)
    results = [{"role": "tool", "content": _words(rng), "tool_call_id": call["id"]} for call in calls]
    return [message, *results]


def _words(rng: random.Random) -> str:
    """Words, at times with the marks of templates among them."""
    words = [rng.choice(WORDS if rng.random() < 0.8 else MARKS) for _ in range(rng.randrange(4))]
    return rng.choice(("", " ")).join(words)
