"""A real run with images: what balancing tokens and patches takes off a step of a small Qwen2.5-VL on two ranks."""

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from harness import Row, Sample, results_of_ranks
from tests.flat_words import prepare
from workload import Workspace

from packhorse.client import PackedDataset, Topology
from packhorse.prepare import Resource
from packhorse.vision import media_of

NOTE = (
    "balanced images: a Qwen2.5-VL of 4 layers (hidden size 128) with an encoder of 4 (64), chats with up to 6 images "
    "of 256 patches in bins of 1,024 tokens and 1,536 patches, 2 gloo ranks of one thread × 8 micro-batches of a bin. "
    "A patch costs as much of a token's cost as the encoder has parameters of the language model's. Seconds from one "
    "optimizer step's end to the next, on the same bins and weights, modes in turn. “predicted” comes from the bins' "
    "tokens and patches alone, by weights fitted to the measured times of all bins."
)
RANKS, ACCUMULATION, MAX_SEQ_LEN, PATCHES, VOCABULARY = 2, 8, 1024, 1536, 512
COST_LINEAR = 1 << 20
"""So large that squares of lengths do not count: a small model's attention hardly does."""
MODES = (("none", False), ("optimizer-step", False), ("none", True), ("micro-step", True))
"""(balance, whether ranks wait at every step)."""
_GRID = (1, 16, 16)
_TOKENS_OF_IMAGE = 64


@dataclass(frozen=True)
class Bin:
    """One bin that a rank trained on."""

    tokens: int
    patches: int
    seconds: float
    """Forward and backward, in this thread's processor time."""


def run(workspace: Workspace) -> list[Row]:
    """Trains, and returns rows."""
    num_steps = 2 if workspace.sizes.repeats < 5 else 5
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        random = np.random.default_rng(4)
        num_sequences = 8 * RANKS * ACCUMULATION * (num_steps + 1)
        images = np.where(random.random(num_sequences) < 0.7, 0, random.integers(1, 7, num_sequences))
        text = np.clip(random.lognormal(5.0, 1.2, num_sequences).astype(int), 8, MAX_SEQ_LEN - 6 * _TOKENS_OF_IMAGE)
        chats = np.stack((_TOKENS_OF_IMAGE * images + text, images), axis=1)
        pq.write_table(pa.table({"length": chats[:, 0], "patches": 256 * images}), root / "chats.parquet")
        prepare(
            root / "chats.parquet",
            length_column="length",
            resources=(Resource(name="patches", column="patches", cap=PATCHES, cost=_cost_of_patch()),),
            output=root / "data" / "run",
            max_seq_len=MAX_SEQ_LEN,
            progress=False,
        )
        found = results_of_ranks(_rank, (str(root), chats, num_steps), RANKS)
    return _rows(found, num_steps)


def _rows(found: dict[int, Any], num_steps: int) -> list[Row]:
    bins = {mode: [found[rank]["bins"][mode] for rank in range(RANKS)] for mode in range(len(MODES))}
    every = [b for mode in bins.values() for rank in mode for b in rank]
    columns = np.array([[b.tokens, b.patches, 1] for b in every], dtype=np.float64)
    weights = np.linalg.lstsq(columns, np.array([b.seconds for b in every]), rcond=None)[0]
    measured = {mode: found[0]["seconds"][mode] for mode in bins}
    rows = []
    for plain, balanced, where in ((0, 1, "once an optimizer step"), (2, 3, "at every step")):
        ours, theirs = Sample(tuple(measured[balanced]), "s"), Sample(tuple(measured[plain]), "s")
        ratio = statistics.mean(measured[plain]) / statistics.mean(measured[balanced])
        expected = _predicted(bins[plain], plain, weights) / _predicted(bins[balanced], balanced, weights)
        rows.append(
            Row(
                what=f"optimizer step with images, ranks waiting {where}",
                size=f"{RANKS} ranks × {ACCUMULATION}, {num_steps} optimizer steps",
                ours=f"{ours}, {MODES[balanced][0]}; {_waiting(bins[balanced], balanced, weights)}",
                peer=f"{theirs}, none; {_waiting(bins[plain], plain, weights)}; predicted {expected:.3g}×",
                ratio=ratio,
                target="as predicted within 15 %",
                reached=abs(ratio / expected - 1) < 0.15,
            )
        )
    return rows


def _work(ranks: list[list[Bin]], mode: int, weights: Any) -> np.ndarray:
    """Seconds between two waits: float [ranks, waits]."""
    work = np.array([[weights @ (b.tokens, b.patches, 1) for b in rank] for rank in ranks])
    return work if MODES[mode][1] else work.reshape(RANKS, -1, ACCUMULATION).sum(axis=2)


def _predicted(ranks: list[list[Bin]], mode: int, weights: Any) -> float:
    return float(_work(ranks, mode, weights).max(axis=0).sum())


def _waiting(ranks: list[list[Bin]], mode: int, weights: Any) -> str:
    """Time that waiting adds: to both models together, and where each had waits of its own."""
    shares = []
    for part in (weights, np.array((1, 0, 0)), np.array((0, 1, 0))):
        work = _work(ranks, mode, part)
        shares.append(work.max(axis=0).sum() / work.mean(axis=0).sum() - 1)
    return "waiting {:.1%} (language model {:.1%}, encoder {:.1%})".format(*shares)


def _rank(rank: int, folder: str, chats: np.ndarray, num_steps: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = _model()
    seconds: dict[int, list[float]] = {mode: [] for mode in range(len(MODES))}
    bins: dict[int, list[Bin]] = {mode: [] for mode in range(len(MODES))}
    batches = {mode: iter(_dataset(folder, chats, rank, balance)) for mode, (balance, _) in enumerate(MODES)}
    _micro_step(model, next(iter(_dataset(folder, chats, rank, "none"))))  # warms up
    for _ in range(num_steps):
        for mode, (_, waits) in enumerate(MODES):
            model.zero_grad()
            dist.barrier()
            started = time.perf_counter()
            for _ in range(ACCUMULATION):
                bins[mode].append(_micro_step(model, next(batches[mode])))
                if waits:
                    dist.barrier()
            dist.barrier()
            seconds[mode].append(time.perf_counter() - started)
    results.put((rank, {"seconds": seconds, "bins": bins}))
    dist.destroy_process_group()


def _dataset(folder: str, chats: np.ndarray, rank: int, balance: str) -> PackedDataset:
    from packhorse.client import BatchFormat

    return PackedDataset(
        f"embedded:{folder}/data",
        "run",
        _Tokens(chats),
        batch_size=1,
        seed=5,
        balance=balance,
        rank=(rank, RANKS),
        topology=Topology(accumulation=1 if balance == "none" else ACCUMULATION, cost_linear=COST_LINEAR),
        batch=BatchFormat(preset="padding-free", media=media_of(_config(), _Pixels(chats))),
    )


class _Tokens:
    """Tokens of every id, made up from it: text, then the placeholders of its images."""

    def __init__(self, chats: np.ndarray) -> None:
        self._chats = chats

    def __len__(self) -> int:
        return len(self._chats)

    def __getitem__(self, row: int) -> np.ndarray:
        length, images = self._chats[row].tolist()
        text = np.random.default_rng(row).integers(0, VOCABULARY - 4, length - _TOKENS_OF_IMAGE * images)
        return np.concatenate((text, np.full(_TOKENS_OF_IMAGE * images, VOCABULARY - 1)))


class _Pixels:
    """Pixels of the images of ids, as the model's processor would give them."""

    def __init__(self, chats: np.ndarray) -> None:
        self._chats = chats

    def __call__(self, ids: list[int]) -> dict[int, dict[str, torch.Tensor]]:
        found = {}
        for sequence_id in ids:
            images = int(self._chats[sequence_id, 1])
            grids = torch.tensor([_GRID] * images)
            found[sequence_id] = {"pixel_values": torch.rand(256 * images, 3 * 2 * 4 * 4), "image_grid_thw": grids}
        return found


def _micro_step(model: torch.nn.Module, batch: Any) -> Bin:
    started = time.thread_time()
    inputs = {name: value for name, value in batch.items() if name != "cursor"}
    model(**inputs, use_cache=False).loss.backward()
    patches = len(batch.get("pixel_values", ()))
    return Bin(batch["input_ids"].numel(), patches, time.thread_time() - started)


def _config() -> Any:
    from transformers import Qwen2_5_VLConfig

    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "intermediate_size": 344,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "bos_token_id": None,
            "eos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4]},
        },
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 172,
            "depth": 4,
            "num_heads": 2,
            "patch_size": 4,
            "window_size": 32,
            "fullatt_block_indexes": [],
            "out_hidden_size": 128,
        },
        image_token_id=VOCABULARY - 1,
        video_token_id=VOCABULARY - 2,
        vision_start_token_id=VOCABULARY - 3,
        vision_end_token_id=VOCABULARY - 4,
    )


def _model() -> torch.nn.Module:
    from transformers import Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(_config())


def _cost_of_patch() -> int:
    model = _model().model
    encoder, language = (sum(p.numel() for p in part.parameters()) for part in (model.visual, model.language_model))
    return COST_LINEAR * encoder // language
