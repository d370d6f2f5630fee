r"""Direct preference optimization (DPO) on packed pairs, with a model of transformers.

    torchrun --nproc-per-node 2 client/examples/dpo.py --model gpt2 --pairs pairs.jsonl --output tuned

Each line of `pairs.jsonl` holds `prompt`, `chosen` and `rejected`. A step's pairs are packed anew, both sequences of a
pair in one row, and dealt to the ranks; its loss and gradients are those of the same pairs one by one. What belongs to
Packhorse is `pack_pairs` and `losses_of_pairs`.
"""

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, AutoTokenizer

from packhorse.client import PairLogProbs, build_packing_attention_bias, pack_pairs, pair_log_probs


def log_probs_of_pairs(model: torch.nn.Module, batch: Mapping[str, Any], device: torch.device) -> PairLogProbs:
    """Returns log p(answer | prompt) of the batch's chosen and rejected answers."""
    bias = build_packing_attention_bias(batch, torch.float32, device, causal=True)
    inputs = {name: batch[name].to(device) for name in ("input_ids", "position_ids")}
    return pair_log_probs(batch, model(**inputs, attention_mask=bias, use_cache=False).logits)


def losses_of_pairs(
    model: torch.nn.Module, reference: torch.nn.Module, batch: Mapping[str, Any], beta: float, device: torch.device
) -> torch.Tensor:
    """Returns the DPO loss (Rafailov et al., 2023, equation 7) of each pair of a batch: float32 [pairs]."""
    policy = log_probs_of_pairs(model, batch, device)
    with torch.no_grad():
        base = log_probs_of_pairs(reference, batch, device)
    return -F.logsigmoid(beta * ((policy.chosen - base.chosen) - (policy.rejected - base.rejected)))


def parsed() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="name or folder of a causal language model and its tokenizer")
    parser.add_argument("--pairs", type=Path, required=True, help="JSON lines with prompt, chosen and rejected")
    parser.add_argument("--output", type=Path, help="folder to save the model to")
    parser.add_argument("--max-seq-len", type=int, default=2048, help="tokens in a row; both sequences of a pair fit")
    parser.add_argument("--pairs-per-step", type=int, default=32, help="of all ranks")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=5e-6)
    return parser.parse_args()


def main() -> None:
    """Trains."""
    arguments = parsed()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")

    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    rows = [json.loads(line) for line in arguments.pairs.read_text().splitlines()]
    prompts = [tokenizer(row["prompt"])["input_ids"] for row in rows]
    answers = {
        name: [[*tokenizer(row[name], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for row in rows]
        for name in ("chosen", "rejected")
    }
    plain = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).to(device)
    reference = deepcopy(plain).eval().requires_grad_(False)
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)

    for epoch in range(arguments.epochs):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch)).tolist()  # alike on all ranks
        for first in range(0, len(rows), arguments.pairs_per_step):
            step = order[first : first + arguments.pairs_per_step]
            batches = pack_pairs(
                [prompts[i] for i in step],
                [answers["chosen"][i] for i in step],
                [answers["rejected"][i] for i in step],
                max_seq_len=arguments.max_seq_len,
                pad_token_id=tokenizer.eos_token_id,
                world_size=world_size,
                allow_empty=True,  # a last step may have fewer pairs than ranks
            )[rank::world_size]
            total = torch.zeros((), device=device)
            for number, batch in enumerate(batches, start=1):
                with nullcontext() if number == len(batches) else model.no_sync():
                    loss = losses_of_pairs(model, reference, batch, arguments.beta, device).sum() / len(step)
                    (loss * world_size).backward()  # DDP averages over ranks
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(total)
            if rank == 0:
                print(f"epoch {epoch}, pair {first}: loss {total.item():.4f}", flush=True)
    if rank == 0 and arguments.output is not None:
        plain.save_pretrained(arguments.output)
        tokenizer.save_pretrained(arguments.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
