"""Masks and tokens of random chats, for each shape of template, against transformers' own of the marked template."""

from typing import Any

import numpy as np
import pytest
from tests.shelf.sft import oracle
from transformers import PreTrainedTokenizerFast

from packhorse.sft import ChatEncoder, EncodedSequence
from packhorse.sft.rendering import RenderedChat

shapes = pytest.mark.parametrize("shape", oracle.SHAPES)


def _rendered(encoder: ChatEncoder, chat: dict[str, Any]) -> RenderedChat | None:
    """None if the template writes what the model said first into the turn of the user, which must be refused."""
    try:
        return encoder.render(chat["messages"], chat.get("tools"))
    except ValueError as error:
        if chat["messages"][0]["role"] != "assistant" or "model's turn in message 0" not in str(error):
            raise
        return None


def _trained(encoded: EncodedSequence) -> list[list[int]]:
    """The ids of each trained stretch."""
    edges = np.flatnonzero(np.diff(encoded.loss_mask.astype(np.int8), prepend=0, append=0))
    return [encoded.input_ids[first:end].tolist() for first, end in edges.reshape(-1, 2)]


@shapes
@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_cut_chat_trains_on_its_last_answers_whole(exact: PreTrainedTokenizerFast, shape: str, share: float) -> None:
    template = oracle.without_blocks(oracle.source(shape))
    num_fitting = 0
    for seed in range(12):
        chat = oracle.random_chat(shape, seed)
        whole = ChatEncoder(exact, chat_template=template)
        rendered = _rendered(whole, chat)
        assert rendered is not None
        (uncut,) = whole.encode([rendered])
        room = max(2, int(share * len(uncut)))
        cutting = ChatEncoder(exact, chat_template=template, max_tokens=room)
        (cut,) = cutting.encode([cutting.render(chat["messages"], chat.get("tools"))])
        answers, kept = _trained(uncut), _trained(cut)
        assert kept == answers[len(answers) - len(kept) :], (seed, chat)
        assert cut.num_cut_tokens == len(uncut) - len(cut)
        assert cut.is_too_long == (len(cut) > room)
        num_fitting += not cut.is_too_long
    assert num_fitting


@shapes
@pytest.mark.parametrize("num_chats", [20, pytest.param(400, marks=pytest.mark.long)])
def test_random_chats_have_the_oracles_masks(exact: PreTrainedTokenizerFast, shape: str, num_chats: int) -> None:
    marked = oracle.source(shape)
    encoders = [ChatEncoder(exact, chat_template=text) for text in (oracle.without_blocks(marked), marked)]
    num_compared = seed = 0
    while num_compared < num_chats:
        seed += 1
        assert seed < 4 * num_chats, "the template refuses most of these chats"
        chat = (oracle.random_chat if seed % 2 else oracle.unusual_chat)(shape, seed)
        answer = oracle.answer(exact, shape, chat)
        if answer is None:
            continue
        num_compared += 1
        for encoder in encoders:
            rendered = _rendered(encoder, chat)
            if rendered is None:
                assert encoder is encoders[0], "blocks show the turns"
                continue
            assert rendered.text == answer.text, (seed, chat)
            (encoded,) = encoder.encode([rendered])
            assert encoded.input_ids.tolist() == answer.input_ids, (seed, chat)
            mask = encoded.loss_mask.astype(int).tolist()
            answer = answer if answer.mask is not None else answer._replace(mask=mask)  # ours agree with each other
            assert mask == answer.mask, (seed, chat)
