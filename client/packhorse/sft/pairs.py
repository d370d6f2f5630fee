"""Prompt/response pairs to tokens and a loss mask.

Owns joining the two; leaves tokenizers and cutting to their files. Prompt and response are tokenized apart, as they are
when the model answers: its prompt is tokenized before there is a response.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packhorse.sft.chat import check_max_tokens
from packhorse.sft.messages import as_messages, called, plain_data
from packhorse.sft.sequence import EncodedSequence, truncate_pair
from packhorse.sft.tokenizer import load_chat_tokenizer


class PairEncoder:
    """Encodes prompt/response pairs with one tokenizer.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> tokenizer = Tokenizer(models.WordLevel({"2+2=": 0, "4": 1, "3+3=": 2, "6": 3}, unk_token="4"))
        >>> tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> encoder = PairEncoder(tokenizer, eos=False)
        >>> [encoded.input_ids.tolist() for encoded in encoder.encode([("2+2=", "4"), ("3+3=", "6")])]
        [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        train_on_prompt: bool = False,
        max_tokens: int | None = None,
        eos: bool | str = True,
    ) -> None:
        """Reads the tokenizer; the arguments are those of `encode_prompt_response`.

        Raises:
            FileNotFoundError: the tokenizer is not there.
            ImportError: the extra `packhorse[sft]` is not installed.
            ValueError: an option is wrong, or the tokenizer is not one of the known kinds.
        """
        self._tokenizer = load_chat_tokenizer(tokenizer)
        self._max_tokens = check_max_tokens(max_tokens)
        self._train_on_prompt = train_on_prompt
        self._ending = [] if eos is False else [self._tokenizer.eos_id(None if eos is True else eos)]

    def encode(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedSequence]:
        """Encodes checked (prompt, response) pairs, many at once; those without a trained token too."""
        encodings = self._tokenizer.encode([text for pair in pairs for text in pair])
        return [
            self._join([*self._tokenizer.opening, *prompt.ids], [*response.ids, *self._ending])
            for prompt, response in zip(encodings[::2], encodings[1::2], strict=True)
        ]

    def _join(self, source: list[int], target: list[int]) -> EncodedSequence:
        num_tokens = len(source) + len(target)
        source_len, target_len = len(source), len(target)
        if self._max_tokens is not None:
            source_len, target_len = truncate_pair(source_len, target_len, self._max_tokens)
        loss_mask = np.full(source_len + target_len, True)
        loss_mask[:source_len] = self._train_on_prompt
        return EncodedSequence(
            input_ids=np.array(source[:source_len] + target[:target_len], dtype=np.int32),
            loss_mask=loss_mask,
            num_cut_tokens=num_tokens - len(loss_mask),
        )


def encode_prompt_response(
    prompt: str,
    response: str,
    tokenizer: Any,
    *,
    train_on_prompt: bool = False,
    max_tokens: int | None = None,
    eos: bool | str = True,
) -> EncodedSequence:
    """Encodes a prompt and its response, with a loss mask that trains on the response.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> tokenizer = Tokenizer(models.WordLevel({"2": 0, "+": 1, "=": 2, "4": 3, "<eos>": 4}, unk_token="2"))
        >>> tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> encoded = encode_prompt_response("2 + 2 = ", "4", tokenizer, eos="<eos>")
        >>> encoded.input_ids.tolist(), encoded.loss_mask.tolist()
        ([0, 1, 0, 2, 3, 4], [False, False, False, False, True, True])

    Args:
        prompt: what the model is given; what the tokenizer puts before a text by itself (BOS) goes before it.
        response: what it learns to write.
        tokenizer: as in `encode_chat`.
        train_on_prompt: whether the prompt is trained on too.
        max_tokens: both are cut to it by `truncate_pair` and keep their first tokens; None cuts nothing.
        eos: whether the end-of-sequence token follows, which the model learns to write too. True takes the tokenizer's
            own, a text names another one.

    Raises:
        FileNotFoundError: the tokenizer is not there.
        ImportError: the extra `packhorse[sft]` is not installed.
        NoTargetsError: no token is trained on.
        ValueError: an argument is wrong, or nothing says which token ends a sequence.
    """
    encoder = PairEncoder(tokenizer, train_on_prompt=train_on_prompt, max_tokens=max_tokens, eos=eos)
    (encoded,) = encoder.encode([check_pair(prompt, response)])
    encoded.check_targets()
    return encoded


def check_pair(prompt: object, response: object) -> tuple[str, str]:
    """Returns a pair as it is.

    Raises:
        ValueError: one of the two is not text, or has no UTF-8 form.
    """
    for name, text in (("prompt", prompt), ("response", response)):
        if not isinstance(text, str):
            raise ValueError(f"the {name} is {called(text)}, not text")
    return plain_data(prompt, "the prompt"), plain_data(response, "the response")


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
