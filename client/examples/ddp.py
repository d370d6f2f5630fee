r"""Plain PyTorch: DistributedDataParallel over packed batches, on CPUs (gloo) or GPUs (NCCL).

    torchrun --nproc-per-node 2 client/examples/ddp.py --target 127.0.0.1:50051 --dataset corpus --tokens corpus.idx \
        --vocab-size 8000 --checkpoint run.pt

Kill it at any time and run it again, with as many processes as you like: it continues after the last checkpoint. What
belongs to Packhorse is in `main`; the model knows nothing of packing but an attention bias and position ids.
"""

import argparse
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (its usual name)
from record import Record
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from packhorse.client import Batch, BatchFormat, create_packed_dataloader
from packhorse.client.masks import build_packing_attention_bias
from packhorse.losses import LossCounts, build_loss_weights

LOG_EVERY_STEPS = 10


class Decoder(nn.Module):
    """A small language model of PyTorch's own parts."""

    def __init__(self, vocab_size: int, max_positions: int, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(max_positions, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Returns logits [B, L, vocabulary]; positions begin at 0 in every sequence, and the bias is [B, 1, L, L]."""
        mask = bias.expand(-1, self.heads, -1, -1).flatten(0, 1)
        return self.head(self.layers(self.tokens(input_ids) + self.positions(position_ids), mask))


class Timed:
    """Batches, and for how long they were waited for."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches
        self.waited_seconds = 0.0

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches."""
        batches = iter(self._batches)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self.waited_seconds += time.perf_counter() - asked
            if batch is None:
                return
            yield batch


def parsed() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="the server, host:port")
    parser.add_argument("--dataset", required=True, help="a prepared dataset's name")
    parser.add_argument("--tokens", required=True, help="the token file that it was prepared from")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to go on from, and to save to")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--batch-size", type=int, default=4, help="bins for each rank and step")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-after", type=int, help="steps after which to save and leave")
    parser.add_argument("--record", help="folder to write down every sequence in that was trained on")
    return parser.parse_args()


def main() -> None:
    """Trains."""
    arguments = parsed()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(arguments.seed)
    is_first = dist.get_rank() == 0

    loader = create_packed_dataloader(
        arguments.target,
        arguments.dataset,
        arguments.tokens,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        device=device,
        batch=BatchFormat(shift_labels=True),
    )
    model = DistributedDataParallel(Decoder(arguments.vocab_size, max_positions=4096).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    if arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, map_location=device, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["cursor"])  # under any number of ranks and workers and any batch size

    def save() -> None:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"cursor": loader.state_dict()}, f"{arguments.checkpoint}.new")
        os.replace(f"{arguments.checkpoint}.new", arguments.checkpoint)  # whole, or not at all

    record = Record(arguments.record)
    num_steps = 0  # of this process; a resume begins to count again
    for epoch in loader.epochs(arguments.epochs):  # those that are left
        batches, began = Timed(loader), time.perf_counter()
        for batch in tqdm(batches, f"epoch {epoch}", total=len(loader), unit="step", disable=not is_first):
            # The mean over all targets of all ranks, of which each has another number; DDP averages over ranks.
            counts = LossCounts.of_batch(batch).all_reduce(device=device)
            weights = build_loss_weights(batch, "token", counts=counts, gradient_divisor=dist.get_world_size())
            bias = build_packing_attention_bias(batch, torch.float32, device, causal=True)
            logits = model(batch["input_ids"], batch["position_ids"], bias)
            losses = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
            loss = (losses * weights.flatten()).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

            num_steps += 1
            record.add(batch, batch["cu_seqlens"])
            if num_steps % LOG_EVERY_STEPS == 1:
                mean = loss.detach() / dist.get_world_size()  # without the gradient_divisor, for the sum over ranks
                dist.all_reduce(mean)
                share = batches.waited_seconds / (time.perf_counter() - began)
                if is_first:
                    tqdm.write(
                        f"step {num_steps}: loss {mean.item():.4f}, {share:.2%} of the time spent waiting for data"
                    )
            if is_first and num_steps % arguments.save_every == 0:
                save()
            if num_steps == arguments.stop_after:
                break
        if num_steps == arguments.stop_after:
            break
    if is_first and num_steps:
        save()
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
