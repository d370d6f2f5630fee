"""Prompt/response pairs: tokens, what is trained on, the cutoff and the end of a sequence."""

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from packhorse.sft import NoTargetsError, encode_prompt_response


def ids(model: Tokenizer, text: str) -> list[int]:
    return PreTrainedTokenizerFast(tokenizer_object=model)(text, add_special_tokens=False)["input_ids"]


def test_the_response_and_its_end_are_trained_on(fast: PreTrainedTokenizerFast, model: Tokenizer) -> None:
    encoded = encode_prompt_response("How are you? ", "I am well é", fast)
    prompt, response = ids(model, "How are you? "), ids(model, "I am well é")
    eos = model.token_to_id("</s>")
    assert encoded.input_ids.tolist() == [model.token_to_id("<s>"), *prompt, *response, eos]
    assert encoded.loss_mask.tolist() == [False] * (1 + len(prompt)) + [True] * (len(response) + 1)
    assert encoded.num_trained_tokens == len(response) + 1
    assert encode_prompt_response("How", "I", fast, train_on_prompt=True).loss_mask.all()


def test_the_end_may_be_another_token_or_none(fast: PreTrainedTokenizerFast, model: Tokenizer) -> None:
    assert encode_prompt_response("a", "b", fast, eos="<|im_end|>").input_ids[-1] == model.token_to_id("<|im_end|>")
    assert encode_prompt_response("a", "b", fast, eos=False).input_ids.tolist()[1:] == [
        *ids(model, "a"),
        *ids(model, "b"),
    ]
    with pytest.raises(ValueError, match="eos '<nope>' is not a token"):
        encode_prompt_response("a", "b", fast, eos="<nope>")
    with pytest.raises(ValueError, match="does not say which token ends a sequence"):
        encode_prompt_response("a", "b", model)


@pytest.mark.parametrize("max_tokens", [3, 6, 8, 12, 20, 100])
def test_a_cutoff_takes_the_begin_of_the_prompt_and_nothing_of_the_response(
    fast: PreTrainedTokenizerFast, max_tokens: int
) -> None:
    prompt, response = "How are you? I am well. The sum is 42!", "qwertz uiop"
    whole = encode_prompt_response(prompt, response, fast)
    target_len = whole.num_trained_tokens
    tokens = whole.input_ids.tolist()
    source = tokens[:-target_len]
    if max_tokens < target_len + 2:  # BOS and a token of the prompt
        with pytest.raises(NoTargetsError, match="does not fit the cutoff"):
            encode_prompt_response(prompt, response, fast, max_tokens=max_tokens)
        return
    cut = encode_prompt_response(prompt, response, fast, max_tokens=max_tokens)
    room = max_tokens - target_len - 1
    assert cut.input_ids.tolist() == [tokens[0], *source[1:][-room:], *tokens[-target_len:]]
    assert cut.loss_mask.tolist() == [False] * (len(cut) - target_len) + [True] * target_len
    assert cut.num_cut_tokens == len(whole) - len(cut)


def test_pairs_that_teach_nothing_are_refused(fast: PreTrainedTokenizerFast, model: Tokenizer) -> None:
    assert encode_prompt_response("a", "", fast).num_trained_tokens == 1
    with pytest.raises(NoTargetsError, match="0 of the sequence's 2 tokens are trained on"):
        encode_prompt_response("a", "", fast, eos=False)
    with pytest.raises(NoTargetsError, match=r"without cutting an answer; raise the cutoff"):
        encode_prompt_response("a" * 5000, "b", fast, max_tokens=2)
    # No model predicts the first token of a sequence.
    with pytest.raises(NoTargetsError, match="0 of the sequence's 1 tokens"):
        encode_prompt_response("", "</s>", _without_bos(model), eos=False)


def test_what_is_not_text_is_refused(fast: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="the response is null, not text"):
        encode_prompt_response("a", None, fast)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the prompt has no UTF-8 form"):
        encode_prompt_response("\ud800", "b", fast)


def _without_bos(model: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(model.to_str())
    copy.post_processor = None
    return copy
