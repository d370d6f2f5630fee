"""Masks and tokens of random chats, for each shape of template, against transformers' own of the marked template."""

import pytest
from tests.sft import oracle
from transformers import PreTrainedTokenizerFast

from packhorse.sft import ChatEncoder

shapes = pytest.mark.parametrize("shape", oracle.SHAPES)


@shapes
@pytest.mark.parametrize("num_chats", [40, pytest.param(400, marks=pytest.mark.long)])
def test_random_chats_have_the_oracles_masks(exact: PreTrainedTokenizerFast, shape: str, num_chats: int) -> None:
    marked = oracle.source(shape)
    encoders = [ChatEncoder(exact, chat_template=text) for text in (oracle.without_blocks(marked), marked)]
    num_compared = 0
    for seed in range(num_chats):
        chat = oracle.random_chat(shape, seed)
        answer = oracle.answer(exact, shape, chat)
        if answer is None:
            continue
        num_compared += 1
        for encoder in encoders:
            rendered = encoder.render(chat["messages"], chat.get("tools"))
            assert rendered.text == answer.text, (seed, chat)
            (encoded,) = encoder.encode([rendered])
            assert encoded.input_ids.tolist() == answer.input_ids, (seed, chat)
            mask = encoded.loss_mask.astype(int).tolist()
            answer = answer if answer.mask is not None else answer._replace(mask=mask)  # ours agree with each other
            assert mask == answer.mask, (seed, chat)
    assert num_compared > num_chats / 2
