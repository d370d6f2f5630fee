"""Writes what other packers make of the same sequences: what the presets are compared with where CI cannot run them.

Owns how each file here was made; `tests/client/presets/test_recorded.py` compares and never writes. Each consumer wants
an environment of its own, where it is run by hand, with torch and NumPy beside what its function names:

    pip install grain && python tests/golden/consumers/record.py grain

Consumers that no registry has are read from a checkout, of which only the definitions named are run:

    python tests/golden/consumers/record.py open_instruct /path/to/open-instruct
"""

import ast
import dataclasses
import json
import sys
import types
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
IGNORED = -100
MAX_SEQ_LEN = 8
BINS = [[[11, 12, 13], [21, 22]], [[31, 32, 33, 34, 35, 36, 37, 38]], [[41, 42, 43, 44], [51]]]
SEQUENCES = [tokens for one_bin in BINS for tokens in one_bin]


def shifted(tokens: list[int], last: int = IGNORED) -> list[int]:
    """Each token's successor, and `last` at the end."""
    return [*tokens[1:], last]


def unshifted(tokens: list[int]) -> list[int]:
    """The tokens, the first left out."""
    return [IGNORED, *tokens[1:]]


def grain(_: Path | None) -> dict[str, Any]:
    """`pip install grain`. Inputs and targets are two features; one bin at a time, so that first-fit makes ours."""
    import numpy as np
    from grain import MapDataset
    from grain.experimental import FirstFitPackIterDataset

    rows = [{"inputs": np.array(tokens), "targets": np.array(shifted(tokens, 0))} for tokens in SEQUENCES]
    packed = FirstFitPackIterDataset(
        MapDataset.source(rows).to_iter_dataset(),
        length_struct={"inputs": MAX_SEQ_LEN, "targets": MAX_SEQ_LEN},
        num_packing_bins=1,
        shuffle_bins=False,
    )
    out = list(packed)
    arrays = {key: np.stack([row[key] for row in out]) for key in out[0]}
    return {"version": version("grain"), "batch": {key: value.tolist() for key, value in arrays.items()}}


def maxtext(checkout: Path | None) -> dict[str, Any]:
    """A checkout of AI-Hypercomputer/maxtext: its shift of what Grain packed, that of `grain.json`."""
    import numpy as np

    assert checkout is not None
    found = definitions(
        checkout / "src/maxtext/input_pipeline/input_pipeline_utils.py", ["shift_left", "shift_and_refine"], np=np
    )
    packed = {key: np.array(value) for key, value in json.loads((FOLDER / "grain.json").read_text())["batch"].items()}
    batch = {}
    for name in ("inputs", "targets"):
        batch[name] = packed["inputs"]
        batch[f"{name}_segmentation"] = packed["inputs_segment_ids"]
        batch[f"{name}_position"] = packed["inputs_positions"]
    batch = found["shift_and_refine"](batch, ignored_ids=[0])
    return {"version": "main of 22 August 2026", "batch": {key: value.tolist() for key, value in batch.items()}}


def torchtune(_: Path | None) -> dict[str, Any]:
    """`pip install torchtune torchao==0.10.0`. Its packer takes labels as they come, so once for each preset."""
    import torch
    from torchtune.datasets import PackedDataset
    from torchtune.modules.attention_utils import create_block_causal_mask

    out: dict[str, Any] = {"version": version("torchtune")}
    for name, label in (("torchtune", shifted), ("torchtune-0.6", unshifted)):
        rows = [{"tokens": list(tokens), "labels": label(tokens)} for tokens in SEQUENCES]
        packs = list(PackedDataset(rows, max_seq_len=MAX_SEQ_LEN))
        out[name] = {key: torch.stack([pack[key] for pack in packs]).tolist() for key in packs[0] if key != "seq_lens"}
        out[name]["seq_lens"] = [pack["seq_lens"].tolist() for pack in packs]
        out["mask"] = create_block_causal_mask([pack["seq_lens"] for pack in packs]).int().tolist()
    return out


def llama_factory(_: Path | None) -> dict[str, Any]:
    """`pip install llamafactory`; here without its audio packages. Bins one by one, so that its knapsack makes ours."""
    for name in ("torchaudio", "av", "librosa"):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__spec__ = ModuleSpec(name, None)
            sys.modules[name] = module
    import torch
    import trl

    if not hasattr(trl, "AutoModelForCausalLMWithValueHead"):
        trl.AutoModelForCausalLMWithValueHead = object
    from llamafactory.data.collator import prepare_4d_attention_mask
    from llamafactory.data.processor.supervised import PackedSupervisedDatasetProcessor
    from llamafactory.model.model_utils.packing import get_unpad_data

    class Encoded(PackedSupervisedDatasetProcessor):  # type: ignore[misc]
        """Takes tokens for prompts."""

        def _encode_data_example(self, prompt: Any, **_: Any) -> tuple[list[int], list[int]]:
            return list(prompt[0]), unshifted(prompt[0])

    processor = Encoded(
        template=None,
        tokenizer=types.SimpleNamespace(pad_token_id=0),
        processor=None,
        data_args=types.SimpleNamespace(neat_packing=True, cutoff_len=MAX_SEQ_LEN),
    )
    batch: dict[str, list[Any]] = {"input_ids": [], "labels": [], "attention_mask": [], "position_ids": []}
    for one_bin in BINS:
        n = len(one_bin)
        columns = ("_response", "_system", "_tools", "_images", "_videos", "_audios")
        examples = {"_prompt": [[tokens] for tokens in one_bin]} | {column: [[None]] * n for column in columns}
        made = processor.preprocess_dataset(examples)
        for key, rows in batch.items():
            rows.extend(made[key])
    mask = torch.tensor(batch["attention_mask"])
    indices, cu_seqlens, max_seqlen = get_unpad_data(mask)
    return {
        "version": version("llamafactory"),
        "batch": batch,
        "mask": (prepare_4d_attention_mask(mask, torch.float32)[:, 0] == 0).int().tolist(),
        "indices": indices.tolist(),
        "cu_seqlens": cu_seqlens.tolist(),
        "max_seqlen": max_seqlen,
    }


def open_instruct(checkout: Path | None) -> dict[str, Any]:
    """A checkout of allenai/open-instruct, and `pip install transformers`."""
    import torch
    from transformers import DefaultDataCollator

    assert checkout is not None
    found = definitions(
        checkout / "open_instruct/padding_free_collator.py",
        ["_collect_flattened_features", "TensorDataCollatorWithFlattening"],
        torch=torch,
        DefaultDataCollator=DefaultDataCollator,
        dataclass=dataclasses.dataclass,
        Any=Any,
    )
    batch = found["TensorDataCollatorWithFlattening"]()([{"input_ids": torch.tensor(tokens)} for tokens in SEQUENCES])
    return {
        "version": "main of 20 August 2026",
        "batch": {key: value.tolist() if torch.is_tensor(value) else value for key, value in batch.items()},
        "dtypes": {key: str(value.dtype) for key, value in batch.items() if torch.is_tensor(value)},
    }


def megatron(_: Path | None) -> dict[str, Any]:
    """`pip install --no-deps megatron-core`. Its loss where labels are -100, of logits sin(0, 1, 2, …)."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29511", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    rows = [list(chain(*map(shifted, one_bin))) for one_bin in BINS]
    labels = torch.tensor([row + [IGNORED] * (MAX_SEQ_LEN - len(row)) for row in rows]).view(1, -1)
    vocab_size = 60
    logits = torch.arange(labels.numel() * vocab_size, dtype=torch.float32).sin().view(labels.numel(), 1, vocab_size)
    losses = vocab_parallel_cross_entropy(logits.clone(), labels.t())
    return {
        "version": version("megatron-core"),
        "packed_seq_params": [field.name for field in dataclasses.fields(PackedSeqParams)],
        "vocab_size": vocab_size,
        "labels": labels.tolist(),
        "losses": losses.t().tolist(),
    }


def definitions(path: Path, names: list[str], **globals_: Any) -> dict[str, Any]:
    """Runs some functions and classes of a file without its imports."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    exec(compile(tree, str(path), "exec"), globals_)
    return {name: globals_[name] for name in names}


CONSUMERS = {made.__name__: made for made in (grain, llama_factory, maxtext, megatron, open_instruct, torchtune)}


def main(name: str, checkout: str | None = None) -> None:
    """Writes one file."""
    recorded = {"max_seq_len": MAX_SEQ_LEN, "bins": BINS} | CONSUMERS[name](checkout and Path(checkout))
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in recorded.items())
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
