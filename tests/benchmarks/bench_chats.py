"""Chats to tokens and a loss mask, beside transformers' `apply_chat_template`, which makes the tokens alone."""

import time
import tracemalloc
from collections.abc import Sequence
from itertools import islice
from typing import Any

from bench_tokenize import texts
from harness import Row, Sample, interleaved
from tests.shelf.sft import oracle
from transformers import PreTrainedTokenizerFast
from workload import Workspace, in_words

from packhorse.sft import ChatEncoder
from packhorse.tokenize import train_tokenizer

NOTE = (
    "chats: rendering and encoding conversations with their loss mask, beside `apply_chat_template` of transformers "
    "with the same template and tokenizer, which finds no mask. Both on one thread of Python; templates in the shapes "
    "of public ones, without generation blocks. A turn is a question and an answer of 400 characters each, in long "
    "chats of 1,500. The tokenizer is a byte-level BPE of 16,384 tokens. Memory: what Python holds at most beyond the "
    "tenth of the chats that came first."
)
_SHAPES = ("qwen25", "llama31", "gptoss")
_CHATS = {"one turn": (1, 400), "three turns": (3, 400), "long": (12, 1_500)}
_BATCH = 64


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    text = "\n".join(islice(texts(4_000_000), 100))
    model = train_tokenizer([text], vocab_size=16_384)
    model.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
    model.add_special_tokens(["<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    rows = [_speed(workspace, fast, shape, kind, _chats(text, *_CHATS[kind])) for shape in _SHAPES for kind in _CHATS]
    return [*rows, _memory(workspace, fast, _chats(text, *_CHATS["one turn"]))]


def _speed(workspace: Workspace, fast: Any, shape: str, kind: str, chats: Sequence[Any]) -> Row:
    template = oracle.without_blocks(oracle.source(shape))
    encoder = ChatEncoder(fast, chat_template=template)

    def ours() -> float:
        started = time.perf_counter()
        _encode(encoder, chats)
        return len(chats) / (time.perf_counter() - started)

    def theirs() -> float:
        started = time.perf_counter()
        for chat in chats:
            fast.apply_chat_template(chat, chat_template=template, return_dict=True)
        return len(chats) / (time.perf_counter() - started)

    _, *measured = zip(*interleaved(workspace.sizes.repeats + 1, ours, theirs), strict=True)
    mine, peer = (Sample(values, "rows/s") for values in zip(*measured, strict=True))
    ratio = mine.median / peer.median
    return Row(
        what=f"chats to tokens and a mask, shape of {shape}",
        size=kind,
        ours=str(mine),
        peer=f"{peer}, transformers, no mask",
        ratio=ratio,
        target="≥ 0.8×",
        reached=ratio >= 0.8,
    )


def _memory(workspace: Workspace, fast: Any, chats: Sequence[Any]) -> Row:
    encoder = ChatEncoder(fast, chat_template=oracle.without_blocks(oracle.source("qwen25")))
    num_rounds = workspace.sizes.text_bytes // 1_600 // len(chats)
    tracemalloc.start()
    for _ in range(num_rounds // 10):
        _encode(encoder, chats)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    for _ in range(num_rounds):
        _encode(encoder, chats)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    grown = (most - before) / 2**20
    return Row(
        what="memory beyond the first chats",
        size=f"{in_words(num_rounds * len(chats))} chats of one turn",
        ours=f"{grown:.1f} MiB",
        target="≤ 8 MiB",
        reached=grown <= 8,
    )


def _encode(encoder: ChatEncoder, chats: Sequence[Any]) -> None:
    for first in range(0, len(chats), _BATCH):
        encoder.encode([encoder.render(chat) for chat in chats[first : first + _BATCH]])


def _chats(text: str, num_turns: int, length: int) -> list[list[dict[str, str]]]:
    """Conversations of pieces of a text that follow each other."""
    count = 200 if num_turns < 10 else 20
    pieces = [text[at : at + length].strip() or "." for at in range(0, count * num_turns * 2 * length, length)]
    said = iter(pieces)
    return [
        [{"role": role, "content": next(said)} for _ in range(num_turns) for role in ("user", "assistant")]
        for _ in range(count)
    ]
