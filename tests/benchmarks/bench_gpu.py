"""What runs on a GPU: masks, attention over packed rows, and a model that trains on packed and on padded batches."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from bench_masks import layout_of
from gpu_model import HEADS, VOCABULARY, WIDTH, Trainer, Where, attend, gpu_milliseconds
from harness import Row, Sample, interleaved
from loops import token_file
from tests.flat_words import packed_dataloader, packed_dataset
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.data import DataLoader
from workload import MAX_SEQ_LEN, Workspace, in_words, serving, shares

from packhorse.client.batches.layout import PackLayout
from packhorse.client.masks import (
    VarlenOffsets,
    build_block_mask,
    build_boolean_mask,
    build_packing_attention_bias,
    build_varlen_offsets,
)

NOTE = (
    "gpu: on one GPU, named in the sizes. Times end when the GPU has done what was queued. “attention” is forward and "
    f"backward in bfloat16 with {HEADS} heads of {WIDTH // HEADS}, FlexAttention and dense masks compiled or fused by "
    "PyTorch, over 8 rows × 2,048 that sequences of usual lengths fill; its peer attends over the same sequences, each "
    "in a row of its own padded to the longest. “training” is whole steps of a compiled model of 12 layers of width "
    "768 with fused AdamW; tokens are those of sequences, not padding. Padded peers take as many sequences a batch as "
    "packed rows hold on average, padded to the longest of the batch, rounded up to 256; “by length” sorts fifty "
    "batches' sequences first, as `group_by_length` does. Batches for these stand on the GPU already. The loaders' "
    "rows train on what `packhorse serve` streams; the bound is the same steps over batches that stay on the GPU."
)
_ROWS = 8
_SHAPE = (_ROWS, MAX_SEQ_LEN)
_MAX_SEQUENCES = 128
_SEQUENCES = 200_000
_WORKERS = 2


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    if not torch.cuda.is_available():
        raise SystemExit("gpu needs a CUDA device, and PyTorch finds none here")
    torch._dynamo.config.recompile_limit = 32
    repeats, name = workspace.sizes.repeats, torch.cuda.get_device_name()
    layout = layout_of(_ROWS, MAX_SEQ_LEN, 0)
    rows = [
        *_masks(layout, repeats),
        *_attention(layout, repeats),
        *_training(repeats),
        *_loaders(workspace),
    ]
    return [replace(row, size=f"{row.size}, {name}") for row in rows]


def _masks(usual: PackLayout, repeats: int) -> Iterator[Row]:
    for layout in (usual, layout_of(1, 32_768, 0)):
        rows, length = layout.num_rows, layout.row_tokens
        labels = torch.from_numpy(layout.sequence_ids()).cuda()

        def causal_in_sequences(b: Any, h: Any, q: Any, k: Any, labels: torch.Tensor = labels) -> Any:
            return (labels[b, q] == labels[b, k]) & (q >= k)

        ways = (
            lambda layout=layout: build_block_mask(layout, "cuda", causal=True),
            lambda rows=rows, length=length: create_block_mask(causal_in_sequences, rows, None, length, length, "cuda"),
        )
        for mine, theirs in zip(ways[0]().as_tuple()[:8], ways[1]().as_tuple()[:8], strict=True):
            assert not isinstance(mine, torch.Tensor) or torch.equal(mine, theirs)
        ours, peer = _milliseconds(repeats, 20, *ways)
        yield _against("build_block_mask", f"{rows} × {in_words(length)}", ours, peer, "create_block_mask", least=5.0)
    for what, ways in {
        "attention bias, bfloat16, causal": (
            lambda where: build_packing_attention_bias(where, torch.bfloat16, "cuda", causal=True),
            _bias_of_pairs,
        ),
        "boolean mask, causal": (
            lambda where: build_boolean_mask(where, "cuda", causal=True),
            lambda where: _bias_of_pairs(where) == 0,
        ),
    }.items():
        assert torch.equal(ways[0](usual), ways[1](usual)), what
        ours, peer = _milliseconds(repeats, 20, *(partial(way, usual) for way in ways))
        yield _against(what, f"{_ROWS} × {in_words(MAX_SEQ_LEN)}", ours, peer, "comparing all pairs on the GPU")


def _bias_of_pairs(layout: PackLayout) -> torch.Tensor:
    """[B, 1, L, L]: what users write who have sequence_ids."""
    labels = torch.from_numpy(layout.sequence_ids()).cuda()
    allowed = (labels[:, :, None] == labels[:, None, :]).tril()
    return torch.zeros(allowed.shape, dtype=torch.bfloat16, device="cuda").masked_fill_(~allowed, -torch.inf)[:, None]


def _attention(layout: PackLayout, repeats: int) -> Iterator[Row]:
    compiled = torch.compile(attend, dynamic=False)
    packed = _states(*_SHAPE)
    lengths = layout.lengths
    padded = _states(len(lengths), int(lengths.max()))
    wheres: dict[str, Where] = {
        "FlexAttention by build_block_mask": build_block_mask(layout, "cuda", causal=True),
        "varlen_attention by build_varlen_offsets": _offsets(layout),
        "SDPA by build_boolean_mask": build_boolean_mask(layout, "cuda", causal=True),
    }
    works = [
        *(partial(_there_and_back, compiled, packed, where) for where in wheres.values()),
        partial(_there_and_back, attend, padded, None),
    ]
    *ours, peer = _milliseconds(repeats, 20, *works)
    size = f"{in_words(int(lengths.sum()))} tokens of {len(lengths)} sequences"
    for name, times in zip(wheres, ours, strict=True):
        least = None if "SDPA" in name else 1.0
        yield _against(f"attention, {name}", size, times, peer, "SDPA over padded sequences", least)


def _states(rows: int, length: int) -> list[torch.Tensor]:
    shape = (rows, HEADS, length, WIDTH // HEADS)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]


def _there_and_back(way: Callable[..., torch.Tensor], states: list[torch.Tensor], where: Where) -> None:
    attended = way(*states, where)
    torch.autograd.grad(attended, states, attended)


def _offsets(layout: PackLayout) -> VarlenOffsets:
    """Of rows with their padding: it is the end of the sequence before, which sees nothing of it."""
    offsets = build_varlen_offsets(layout, "cuda", num_sequences=_MAX_SEQUENCES, max_seqlen=MAX_SEQ_LEN)
    return replace(offsets, cu_seqlens=offsets.cu_seqlens_padded)


def _training(repeats: int) -> Iterator[Row]:
    """Steps over batches that stand on the GPU: packed ones by each mask, and padded ones."""
    random = np.random.default_rng(0)
    layouts = [layout_of(_ROWS, MAX_SEQ_LEN, seed) for seed in range(20)]
    per_batch = round(float(np.mean([layout.num_sequences for layout in layouts])))
    lengths = random.choice(MAX_SEQ_LEN, p=shares(), size=50 * per_batch) + 1
    trainer = Trainer(MAX_SEQ_LEN)
    ways: dict[str, list[tuple[tuple[Any, ...], int]]] = {
        "FlexAttention": [_packed(layout, build_block_mask(layout, "cuda", causal=True)) for layout in layouts],
        "varlen_attention": [_packed(layout, _offsets(layout)) for layout in layouts],
        "padded": [_padded(part) for part in np.split(lengths, 50)[:20]],
        "by length": [_padded(part) for part in random.permutation(np.split(np.sort(lengths), 50))[:20]],
    }
    rates = interleaved(repeats, *(partial(_tokens_per_second, trainer, batches) for batches in _warmed(trainer, ways)))
    of = {name: Sample(values, "k tokens/s") for name, values in zip(ways, rates, strict=True)}
    size = f"{_ROWS} × {in_words(MAX_SEQ_LEN)}, or {per_batch} padded sequences"
    for name in ("FlexAttention", "varlen_attention"):
        for peer, shown in (("padded", "padded to the longest"), ("by length", "padded, by length")):
            ratio = of[name].median / of[peer].median
            yield Row(
                what=f"training, packed, {name}", size=size, ours=str(of[name]), peer=f"{of[peer]}, {shown}",
                ratio=ratio, target="≥ 1.5×" if peer == "padded" else "",
                reached=ratio >= 1.5 if peer == "padded" else None,
            )  # fmt: skip


def _warmed(trainer: Trainer, ways: dict[str, list[tuple[tuple[Any, ...], int]]]) -> Iterator[Any]:
    """Yields the batches of each way when its steps are compiled for all their shapes."""
    for batches in ways.values():
        _tokens_per_second(trainer, batches)
        yield batches


def _tokens_per_second(trainer: Trainer, batches: list[tuple[tuple[Any, ...], int]]) -> float:
    """Thousands of tokens of sequences in a second."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for tensors, _ in batches:
        trainer.step(*tensors)
    torch.cuda.synchronize()
    return sum(num_tokens for _, num_tokens in batches) / (time.perf_counter() - started) / 1000


def _packed(layout: PackLayout, where: Where) -> tuple[tuple[Any, ...], int]:
    """(arguments of a step, tokens of sequences), of random tokens."""
    tokens = torch.randint(VOCABULARY, _SHAPE, device="cuda")
    positions = np.concatenate([np.arange(places) for places in np.diff(layout.cu_seqlens_padded)])
    positions = torch.from_numpy(positions).cuda().view(_SHAPE)
    return (tokens, positions, tokens.roll(-1, 1), where), layout.num_tokens


def _padded(lengths: np.ndarray) -> tuple[tuple[Any, ...], int]:
    """The same with one sequence a row."""
    longest = min(-(-int(lengths.max()) // 256) * 256, MAX_SEQ_LEN)
    tokens = torch.randint(VOCABULARY, (len(lengths), longest), device="cuda")
    positions = torch.arange(longest, device="cuda").expand_as(tokens)
    is_token = positions < torch.from_numpy(lengths).cuda()[:, None]
    return (tokens, positions, tokens.roll(-1, 1).where(is_token, -100), None), int(lengths.sum())


def _loaders(workspace: Workspace) -> Iterator[Row]:
    """Steps over what a server streams, beside the same steps over batches that stay on the GPU."""
    num_sequences = min(_SEQUENCES, workspace.sizes.small)
    name, tokens = f"bench-{num_sequences}", token_file(workspace, num_sequences)
    options: dict[str, Any] = {"batch_size": _ROWS, "seed": 3, "rank": 0, "world_size": 1, "shift_labels": True}
    steps = 20 * workspace.sizes.repeats
    trainer = Trainer(MAX_SEQ_LEN)
    with serving(workspace.root_of(num_sequences)) as (address, _):
        ready = packed_dataloader(address, name, tokens, num_workers=_WORKERS, **options)
        plain = DataLoader(
            packed_dataset(address, name, tokens, **options),
            batch_size=None, num_workers=_WORKERS, prefetch_factor=4, persistent_workers=True, pin_memory=True,
        )  # fmt: skip
        with closing(ready):
            resident = list(islice(ready, 20))
            for batch in resident:
                _train(trainer, batch)
            ours, theirs, bound = interleaved(
                3,
                partial(_waits, trainer, ready, steps),
                partial(_waits, trainer, plain, steps),
                lambda: _waits(trainer, cycle(resident), steps),
            )
    size = f"{_ROWS} × {in_words(MAX_SEQ_LEN)}, {_WORKERS} workers, {in_words(num_sequences)} sequences"
    (our_wait, our_rate), (wait, rate), (_, most) = (
        (Sample(tuple(w for w, _ in each), "%"), Sample(tuple(r for _, r in each), "k tokens/s"))
        for each in (ours, theirs, bound)
    )
    yield Row(
        what="share of a training step that waits for data", size=size, ours=str(our_wait),
        peer=f"{wait}, plain DataLoader", ratio=wait.median / our_wait.median, target="< 1 %",
        reached=our_wait.median < 1,
    )  # fmt: skip
    for peer, other in (("batches that stay on the GPU", most), ("plain DataLoader", rate)):
        ratio = our_rate.median / other.median
        yield Row(
            what="training, create_packed_dataloader", size=size, ours=str(our_rate), peer=f"{other}, {peer}",
            ratio=ratio, target="≥ 0.98×" if other is most else "", reached=ratio >= 0.98 if other is most else None,
        )  # fmt: skip


def _train(trainer: Trainer, batch: Any) -> None:
    inputs = (batch[key].to("cuda", non_blocking=True) for key in ("input_ids", "position_ids", "labels"))
    trainer.step(*inputs, build_block_mask(batch, "cuda", causal=True))


def _waits(trainer: Trainer, batches: Any, steps: int) -> Any:
    """(percent of the time spent in `next`, thousands of tokens in a second), without the first two batches."""
    batches = iter(batches)
    for _ in range(2):
        _train(trainer, next(batches))
    torch.cuda.synchronize()
    started, waited, num_tokens = time.perf_counter(), 0.0, 0
    for step in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        _train(trainer, batch)
        num_tokens += batch["layout"].num_tokens
        if step % 4 == 3:
            torch.cuda.synchronize()  # as a loop that looks at its loss
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return 100 * waited / seconds, num_tokens / seconds / 1000


def _milliseconds(repeats: int, calls: int, *works: Callable[[], Any]) -> list[Sample]:
    for work in works:
        gpu_milliseconds(work, 3)
    measured = interleaved(repeats, *(partial(gpu_milliseconds, work, calls) for work in works))
    return [Sample(values, "ms") for values in measured]


def _against(what: str, size: str, ours: Sample, peer: Sample, named: str, least: float | None = None) -> Row:
    ratio = peer.median / ours.median
    return Row(
        what=what, size=size, ours=str(ours), peer=f"{peer}, {named}", ratio=ratio,
        target="" if least is None else f"≥ {least:g}×", reached=None if least is None else ratio >= least,
    )  # fmt: skip
