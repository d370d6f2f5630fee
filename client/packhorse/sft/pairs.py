"""`PairEncoder` and `encode_prompt_response`: from prompts and responses to tokens and a loss mask.

Owns joining and cutting the two, and finding the common prompt of a chosen and a rejected one: of texts, and of
conversations. Prompt and response are tokenized separately, as they are when the model answers. Leaves encoding chats
to `sft.chat`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packhorse.parameters import parameter
from packhorse.sft.cutting import Cutoff, check_max_tokens
from packhorse.sft.forms.plain_data import called, plain_data
from packhorse.sft.forms.sharegpt import as_messages
from packhorse.sft.sequence import EncodedSequence
from packhorse.sft.tokenizer_loading import load_chat_tokenizer
from packhorse.sft.tokenizer_settings import with_prefix_space

_NO_PROMPT = (
    "chosen and rejected have no prompt in common, or one of them is nothing but the prompt; "
    "name the prompt's column with " + parameter("prompt_column")
)


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
        cutoff: Cutoff = "oldest",
        eos: bool | str = True,
    ) -> None:
        """Reads the tokenizer; the arguments are those of `encode_prompt_response`.

        Raises:
            FileNotFoundError: the tokenizer is not there.
            ImportError: the extra `packhorse[sft]` is not installed.
            ValueError: an option is wrong, or the tokenizer is not one of the known kinds.
        """
        self._tokenizer = load_chat_tokenizer(tokenizer)
        # A response continues its prompt: SentencePiece's blank before a text would come between the two.
        self._continuing = with_prefix_space(self._tokenizer.model, False)
        self._max_tokens = check_max_tokens(max_tokens)
        self._cutoff = cutoff
        self._train_on_prompt = train_on_prompt
        self._ending = [] if eos is False else [self._tokenizer.eos_id(None if eos is True else eos)]

    def encode(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedSequence]:
        """Encodes checked (prompt, response) pairs; does not refuse one that has no trained token or is too long."""
        prompts = self._tokenizer.encode([prompt for prompt, _ in pairs])
        responses = self._continued([response for _, response in pairs])
        return [
            self._join(self._opened(prompt.ids), self._ended(response.ids))
            for prompt, response in zip(prompts, responses, strict=True)
        ]

    def common_prompt(self, chosen: str, rejected: str) -> tuple[str, str, str]:
        """Finds the prompt with which two texts begin. It ends with a token that both share, after a word if possible.

        The tokens of the prompt followed by those of an answer are the tokens of the whole text. Each try
        encodes both texts again.

        Returns:
            The prompt, then `chosen` and `rejected` without it.

        Raises:
            ValueError: they have no prompt in common.
        """
        one, other = self._tokenizer.encode([chosen, rejected])
        shorter = min(len(one.ids), len(other.ids))
        token_pairs = zip(one.ids, other.ids, strict=False)
        num_shared = next((at for at, (token, twin) in enumerate(token_pairs) if token != twin), shorter)
        # The longest prompt is tried first; one token is left for each answer.
        last_tokens = range(min(num_shared, shorter - 1) - 1, -1, -1)
        ends = [one.offsets[last][1] for last in last_tokens]
        between_words = [end for end in ends if chosen[end : end + 1].isspace() or chosen[end - 1].isspace()]
        for end in dict.fromkeys([*between_words, *ends]):
            if chosen[:end] != rejected[:end]:
                continue
            (prompt,) = self._tokenizer.encode([chosen[:end]])
            answers = self._continued([chosen[end:], rejected[end:]])
            if [[*prompt.ids, *answer.ids] for answer in answers] == [one.ids, other.ids]:
                return chosen[:end], chosen[end:], rejected[end:]
        raise ValueError(_NO_PROMPT)

    def num_opening(self, ids: Sequence[int]) -> int:
        """Returns how many tokens at a sequence's begin the tokenizer adds before a text, such as BOS."""
        count = len(self._tokenizer.opening)
        return count if tuple(ids[:count]) == self._tokenizer.opening else 0

    def num_closing(self, ids: Sequence[int]) -> int:
        """Returns how many tokens at a sequence's end are added after a response, such as EOS: 1 or 0."""
        return len(self._ending) if list(ids[-1:]) == self._ending else 0

    def _continued(self, responses: Sequence[str]) -> list[Any]:
        """Encodes texts that continue others, without a blank before them."""
        found: list[Any] = self._continuing.encode_batch(list(responses), add_special_tokens=False)
        return found

    def _opened(self, ids: list[int]) -> list[int]:
        """Returns a prompt's ids with the tokenizer's opening before them, unless they begin with it."""
        opening = self._tokenizer.opening
        return ids if opening and tuple(ids[: len(opening)]) == opening else [*opening, *ids]

    def _ended(self, ids: list[int]) -> list[int]:
        """Returns a response's ids with the end-of-sequence token after them, unless they end with it."""
        return ids if self._ending and ids[-1:] == self._ending else [*ids, *self._ending]

    def _join(self, prompt: list[int], response: list[int]) -> EncodedSequence:
        """Joins the ids of a prompt and a response; if they are too long, cuts the prompt after its opening."""
        num_opening = len(self._tokenizer.opening)
        excess = 0 if self._max_tokens is None else len(prompt) + len(response) - self._max_tokens
        most_cut = max(len(prompt) - num_opening - 1, 0)  # the prompt's last token stays
        num_cut = min(max(excess, 0), most_cut) if self._cutoff == "oldest" else 0
        prompt = prompt[:num_opening] + prompt[num_opening + num_cut :]
        loss_mask = np.full(len(prompt) + len(response), True)
        loss_mask[: len(prompt)] = self._train_on_prompt
        return EncodedSequence(
            input_ids=np.array(prompt + response, dtype=np.int32),
            loss_mask=loss_mask,
            num_cut_tokens=num_cut,
            is_too_long=excess > num_cut,
            num_open_turns=0 if self._ending else 1,
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
        prompt: the model's input; the tokenizer's own opening (BOS) goes before it.
        response: the text that the model learns to write.
        tokenizer: as in `encode_chat`.
        train_on_prompt: whether the prompt is trained on too.
        max_tokens: most tokens of both together. If there are more, the prompt's beginning is cut, and never the
            response. None for no limit.
        eos: whether an end-of-sequence token follows, which is trained on: True for the tokenizer's own, or the text of
            another.

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
    """Returns a pair; a ValueError if one of the two is not text, or has no UTF-8 form."""
    for name, text in (("prompt", prompt), ("response", response)):
        if not isinstance(text, str):
            raise ValueError(f"the {name} is {called(text)}, not text")
    return plain_data(prompt, "the prompt"), plain_data(response, "the response")


def common_messages(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    """Finds the messages with which two conversations begin; for texts there is `PairEncoder.common_prompt`.

    Example:
        >>> question = {"role": "user", "content": "2 + 2?"}
        >>> answers = [{"role": "assistant", "content": said} for said in ("4", "5")]
        >>> prompt, chosen, rejected = common_messages([question, answers[0]], [question, answers[1]])
        >>> prompt == [question], chosen == answers[:1]
        (True, True)

    Returns:
        The prompt, then `chosen` and `rejected` without it.

    Raises:
        ValueError: they are not both lists of messages, or have no prompt in common.
    """
    if not isinstance(chosen, list) or not isinstance(rejected, list):
        raise ValueError(
            f"chosen is {called(chosen)} and rejected {called(rejected)}; both must be text, or lists of messages"
        )
    chosen, rejected = as_messages(chosen), as_messages(rejected)
    shorter = min(len(chosen), len(rejected))
    pairs = zip(chosen, rejected, strict=False)
    num_shared = next((at for at, (one, other) in enumerate(pairs) if one != other), shorter)
    if not 0 < num_shared < shorter:
        raise ValueError(_NO_PROMPT)
    return chosen[:num_shared], chosen[num_shared:], rejected[num_shared:]


def pair_messages(prompt: Sequence[Mapping[str, Any]], response: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Joins a prompt and a response to one conversation, in which only the response is trained on.

    Example:
        >>> pair_messages([{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "hello"}])
        [{'role': 'user', 'content': 'hi', 'train': False}, {'role': 'assistant', 'content': 'hello'}]

    Both are lists of messages, with role and content or in ShareGPT's form.

    Raises:
        ValueError: one is not such a list, or the prompt ends with a turn of the assistant.
    """
    prompt, response = as_messages(prompt), as_messages(response)
    if not all(isinstance(message, Mapping) for message in (*prompt, *response)):
        raise ValueError("a prompt and a response must be text, or lists of messages with a role and a content each")
    if prompt and prompt[-1].get("role") == "assistant":
        raise ValueError(
            "the prompt ends with a turn of the assistant, which the response would continue; move its content "
            "into the response"
        )
    return [*({**message, "train": False} for message in prompt), *response]
