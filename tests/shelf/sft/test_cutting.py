"""Cutting: the oldest exchanges go first, then the beginning of the longest prompt; headers, ends and answers stay."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from packhorse.sft import ChatEncoder, EncodedSequence, NoTargetsError, encode_chat

Source = Callable[[str], str]
SYSTEM = {"role": "system", "content": "Be kind."}
LONG = "The sum is 42! Hello there, how are you? I am well. " * 6


def chat(*pairs: tuple[Any, str]) -> list[dict[str, Any]]:
    return [
        SYSTEM,
        *(
            {"role": role, "content": text}
            for pair in pairs
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ),
    ]


def same(one: EncodedSequence, other: EncodedSequence) -> bool:
    return one.input_ids.tolist() == other.input_ids.tolist() and one.loss_mask.tolist() == other.loss_mask.tolist()


def test_the_oldest_exchanges_go_first(fast: PreTrainedTokenizerFast, unmarked: Source) -> None:
    pairs = [("Hello", "Good"), ("Sum?", "42"), ("And?", "No more.")]
    template = unmarked("chatml")
    for left in (1, 2):
        shorter = encode_chat(chat(*pairs[-left:]), fast, chat_template=template)
        cut = encode_chat(chat(*pairs), fast, chat_template=template, max_tokens=len(shorter) + 1)
        assert same(cut, shorter)
        assert cut.num_cut_tokens == len(encode_chat(chat(*pairs), fast, chat_template=template)) - len(shorter)


def test_what_the_system_says_later_stays_too(fast: PreTrainedTokenizerFast, unmarked: Source) -> None:
    later = {"role": "developer", "content": "No jokes."}
    first, second, third = (chat(pair)[1:] for pair in (("Hello", "Good"), ("Sum?", "42"), ("And?", "No more.")))
    template = unmarked("chatml")
    shorter = encode_chat([SYSTEM, later, *third], fast, chat_template=template)
    whole = [SYSTEM, *first, later, *second, *third]
    assert same(encode_chat(whole, fast, chat_template=template, max_tokens=len(shorter) + 1), shorter)


@pytest.mark.parametrize("parts", [False, True])
def test_then_the_beginning_of_the_longest_prompt(fast: PreTrainedTokenizerFast, unmarked: Source, parts: bool) -> None:
    content = [{"type": "text", "text": LONG}] if parts else LONG
    encoder = ChatEncoder(fast, chat_template=unmarked("chatml"), max_tokens=60)
    explained = encoder.explain(chat(("first", "gone"), (content, "Good")))
    assert 40 < len(explained.input_ids) <= 60
    begin = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n"
    end = "<|im_end|>\n<|im_start|>assistant\nGood<|im_end|>\n"
    assert explained.text.startswith(begin)
    assert explained.text.endswith(end)
    kept = explained.text.removeprefix(begin).removesuffix(end)
    assert LONG.endswith(kept)
    assert [stretch.text for stretch in explained.stretches if stretch.is_trained] == ["Good", "<|im_end|>"]


def test_an_answer_is_never_cut(fast: PreTrainedTokenizerFast, unmarked: Source) -> None:
    template = unmarked("chatml")
    with pytest.raises(NoTargetsError, match="does not fit the cutoff, without cutting an answer"):
        encode_chat(chat(("Hello", LONG)), fast, chat_template=template, max_tokens=60)
    encoder = ChatEncoder(fast, chat_template=template, max_tokens=60, cutoff="drop")
    (encoded,) = encoder.encode([encoder.render(chat((LONG, "Good")))])
    assert encoded.is_too_long
    with pytest.raises(ValueError, match="cutoff is 'middle'; choose one of oldest, drop"):
        ChatEncoder(fast, chat_template=template, cutoff="middle")  # type: ignore[arg-type]


def test_what_the_template_does_not_render_shorter_is_too_long(fast: PreTrainedTokenizerFast, unmarked: Source) -> None:
    template = "{% if messages | length < 5 %}{{ raise_exception('short') }}{% endif %}" + unmarked("chatml")
    encoder = ChatEncoder(fast, chat_template=template, max_tokens=20)
    (encoded,) = encoder.encode([encoder.render(chat(("Hello", "Good"), ("Sum?", "42")))])
    assert encoded.is_too_long
    assert encoded.num_cut_tokens == 0
