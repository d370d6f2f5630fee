"""A prompt and the answers to it, as preference data has them: text, or lists of messages.

Owns finding a prompt that is not named, and joining messages to a conversation that trains on the answer alone; leaves
encoding to `chat` and `pairs`. The forms are those of TRL's datasets.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.sft.messages import called
from packhorse.sft.sharegpt import as_messages


def common_prompt(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    """Finds the prompt that two answers begin with.

    Of lists it is the messages that both begin with. Of text it is the characters, up to the last space before the
    answers part, since a word's space belongs to the word.

    Example:
        >>> common_prompt("2 + 2 = 4", "2 + 2 = 5")
        ('2 + 2 =', ' 4', ' 5')

    Args:
        chosen: the better answer, with its prompt.
        rejected: the other one, with its prompt.

    Returns:
        The prompt, and each answer without it.

    Raises:
        ValueError: they are not of one kind, or begin with nothing in common.
    """
    is_text = isinstance(chosen, str)
    if is_text != isinstance(rejected, str) or not all(isinstance(each, str | list) for each in (chosen, rejected)):
        raise ValueError(
            f"chosen is {called(chosen)} and rejected {called(rejected)}; both are text, or both lists of messages"
        )
    chosen, rejected = (each if is_text else as_messages(each) for each in (chosen, rejected))
    pairs = zip(chosen, rejected, strict=False)
    length = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(chosen), len(rejected)))
    if is_text and length and chosen[length - 1] == " ":
        length -= 1
    if not length or length == min(len(chosen), len(rejected)):
        raise ValueError(
            "no prompt is named, and chosen and rejected have none in common, or one of them is nothing but the "
            "prompt; name the prompt's column with --prompt-column"
        )
    return chosen[:length], chosen[length:], rejected[length:]


def pair_messages(prompt: Sequence[Mapping[str, Any]], response: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns a conversation of a prompt and a response to it, which trains on the response alone.

    Example:
        >>> pair_messages([{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "hello"}])
        [{'role': 'user', 'content': 'hi', 'train': False}, {'role': 'assistant', 'content': 'hello'}]

    Args:
        prompt: messages, also in ShareGPT's form.
        response: the same.

    Raises:
        ValueError: the prompt ends with a turn of the assistant, or the response holds no turn of its own.
    """
    before, after = as_messages(prompt), as_messages(response)
    if not all(isinstance(message, Mapping) for message in (*before, *after)):
        raise ValueError("a prompt and a response are text, or lists of messages, each with a role and its content")
    if before and before[-1].get("role") == "assistant":
        raise ValueError(
            "the prompt ends with a turn of the assistant, which the response would go on with; move what it says "
            "into the response"
        )
    return [*({**message, "train": False} for message in before), *after]
