r"""Direct preference optimization (DPO) on a dataset of pairs, with a model of transformers.

    packhorse prepare --input answers.jsonl --tokenizer gpt2 --max-seq-len 2048 --output datasets/pairs
    torchrun --nproc-per-node 2 client/examples/dpo.py --model gpt2 --data datasets/pairs --checkpoint run.pt \
        --output tuned

A line of `answers.jsonl` holds a `prompt`, the answer that was `chosen` and the one that was `rejected`. The two are a
group and so share a row; rows are dealt to the ranks. A step's loss and gradients are those of its pairs one by
one. Kill it at any time and run it again, with as many processes as you like: it continues after the last checkpoint.
What belongs to Packhorse is the loader, `as_pair_batch` and `pair_log_probs`.
"""

import argparse
import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

from packhorse.client import create_packed_dataloader
from packhorse.client.masks import build_packing_attention_bias
from packhorse.rollouts import PairLogProbs, as_pair_batch, pair_log_probs


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
    parser.add_argument("--model", required=True, help="name or folder of a causal language model")
    parser.add_argument("--data", required=True, help="prepared folder of pairs, chosen first; or a server, host:port")
    parser.add_argument("--dataset", help="with a server: the dataset's name")
    parser.add_argument("--tokens", help="with a server: the token file, with its loss mask beside it")
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to go on from, and to save to")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--output", type=Path, help="folder to save the model to")
    parser.add_argument("--batch-size", type=int, default=4, help="rows for each rank and step")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=5e-6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-after", type=int, help="steps after which to save and leave")
    return parser.parse_args()


def main() -> None:
    """Trains."""
    arguments = parsed()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    is_first, world_size = dist.get_rank() == 0, dist.get_world_size()

    loader = create_packed_dataloader(
        arguments.data,
        arguments.dataset,
        arguments.tokens,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        num_workers=0,
        device="cpu",  # `log_probs_of_pairs` moves what the model takes
    )
    plain = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).to(device)
    reference = deepcopy(plain).eval().requires_grad_(False)  # the run's first weights, also after a resume
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, map_location=device, weights_only=True)
        plain.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["cursor"])  # under any number of ranks and any batch size

    def save() -> None:
        state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"cursor": loader.state_dict()}, f"{arguments.checkpoint}.new")
        os.replace(f"{arguments.checkpoint}.new", arguments.checkpoint)  # whole, or not at all

    num_steps = 0
    for epoch in loader.epochs(arguments.epochs):  # those that are left
        for batch in map(as_pair_batch, loader):
            num_pairs = torch.tensor(len(batch["pair_ids"]) // 2, device=device)  # each pair's id comes twice
            dist.all_reduce(num_pairs)  # rows, and so ranks, hold different numbers of pairs
            loss = losses_of_pairs(model, reference, batch, arguments.beta, device).sum() / num_pairs
            (loss * world_size).backward()  # DDP averages over ranks
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach()
            dist.all_reduce(total)
            num_steps += 1
            if is_first:
                print(f"epoch {epoch}, step {num_steps}, {num_pairs.item()} pairs: loss {total.item():.4f}", flush=True)
            if is_first and num_steps % arguments.save_every == 0:
                save()
            if num_steps == arguments.stop_after:
                break
        if num_steps == arguments.stop_after:
            break
    if is_first and num_steps:
        save()
    loader.close()
    if is_first and arguments.output is not None:
        plain.save_pretrained(arguments.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
