"""Tokenizing a corpus of JSON lines beside the tokenizers library's own batches, on the same cores."""

import json
import os
import sysconfig
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from harness import Row, Sample, interleaved
from tests.flat_words import tokenize
from workload import Workspace, in_words

from packhorse.tokenize import train_tokenizer

NOTE = (
    "tokenize: JSON lines to token files, from the start of the processes to the files in their place, beside "
    "`encode_batch_fast` of the tokenizers library over the same texts, which are in memory already and whose tokens "
    "are thrown away. Both use all cores. Documents are the modules of Python's standard library, over and over; the "
    "tokenizer is a byte-level BPE of 16,384 tokens."
)
_TRAINED_MODULES = 400
_BATCH = 1024
_REPEATS = 3
"""Each takes a quarter of a minute at full size, and three run in turns."""


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    modules = list(texts(workspace.sizes.text_bytes))
    model = train_tokenizer(modules[:_TRAINED_MODULES])
    model.save(str(workspace.root / "tokenizer.json"))
    corpus = workspace.root / "modules.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": text}) for text in modules))
    cores = os.cpu_count() or 1
    num_tokens = 0

    def ours(workers: int) -> float:
        nonlocal num_tokens
        started = time.perf_counter()
        summary = tokenize(
            corpus,
            workspace.root / "modules",
            tokenizer=workspace.root / "tokenizer.json",
            append_eos=False,
            workers=workers,
            overwrite=True,
            progress=False,
        )
        num_tokens = summary.tokens
        return num_tokens / (time.perf_counter() - started) / 1e6

    def theirs() -> float:
        started = time.perf_counter()
        tokens = _encoded(model, modules)
        return tokens / (time.perf_counter() - started) / 1e6

    interleaved(1, lambda: _encoded(model, modules[:_BATCH]))
    several, one, library = interleaved(_REPEATS, lambda: ours(cores), lambda: ours(1), theirs)
    size = f"{in_words(num_tokens)} tokens"
    return [
        _row(f"tokenize, {cores} processes, the default from 64 MiB on", size, several, library),
        _row(f"tokenize, 1 process, {cores} threads, the default below", size, one, library),
    ]


def _row(what: str, size: str, ours: tuple[float, ...], library: tuple[float, ...]) -> Row:
    sample, peer = Sample(ours, "M tokens/s"), Sample(library, "M tokens/s")
    ratio = sample.median / peer.median
    return Row(
        what=what,
        size=size,
        ours=str(sample),
        peer=f"{peer}, tokenizers",
        ratio=ratio,
        target="≥ 0.8×",
        reached=ratio >= 0.8,
    )


def texts(num_bytes: int) -> Iterator[str]:
    """Yields modules until they are so many bytes together."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    for path in cycle(path for path in paths if "site-packages" not in path.parts):
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip():
            yield text
            num_bytes -= len(text)
            if num_bytes <= 0:
                return


def _encoded(model: Any, texts: list[str]) -> int:
    """Encodes batch by batch, and counts the tokens."""
    batches = (texts[first : first + _BATCH] for first in range(0, len(texts), _BATCH))
    return sum(len(encoding) for batch in batches for encoding in model.encode_batch_fast(batch))
