"""Four processes with Megatron's own parallel state over gloo: what each rank is handed, written down for a test.

python megatron_ranks.py FOLDER TARGET DATASET TOKENS
"""

import os
import sys
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

warnings.simplefilter("ignore")  # Megatron misses Transformer Engine and Apex

from megatron.core import parallel_state, utils  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.multi_token_prediction import roll_tensor  # noqa: E402

from packhorse.client import BatchFormat, LoaderOptions, PackedDataset  # noqa: E402
from packhorse.topology import Topology  # noqa: E402
from packhorse.trainers import PackedData, create_megatron_iterator, get_megatron_batch  # noqa: E402

WORLD_SIZE = 4
CASES = {
    "tp2-dp2": {"tensor_model_parallel_size": 2},
    "tp2-cp2": {"tensor_model_parallel_size": 2, "context_parallel_size": 2},
    "tp2-cp2-peers": {"tensor_model_parallel_size": 2, "context_parallel_size": 2},
    "pp4": {"pipeline_model_parallel_size": 4},
}
SHARED = {
    "dynamic": ({}, "shared-by-4"),
    "dynamic-dp2": ({}, "shared-by-2"),
    "dynamic-tp2": ({"tensor_model_parallel_size": 2}, "shared-by-2"),
}
"""Parallel state, and the dataset whose bins of 256 tokens its ranks share."""
COLLECTIVES = [
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single"),
    *("barrier", "broadcast", "broadcast_object_list", "gather", "irecv", "isend", "recv", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "send"),
]
NUM_STEPS = 3


def data_of(arguments, **options):
    return PackedData(*arguments, loader=LoaderOptions(num_workers=0, device="cpu", **options))


def of_case(arguments, name):
    """What this rank gets: batches, and whether it reads."""
    peers = parallel_state.get_context_parallel_group() if name.endswith("peers") else None
    iterator = create_megatron_iterator(data_of(arguments, peers=peers), micro_batch_size=2, seq_length=256)
    wrapped = None if iterator is None else RerunDataIterator(iterator)
    batches = []
    for _ in range(NUM_STEPS):
        batch = get_megatron_batch(wrapped)
        assert type(batch.packed_seq_params).__module__ == "megatron.core.packed_seq_params"
        params = {name: value for name, value in asdict(batch.packed_seq_params).items() if value is not None}
        batches.append(batch._asdict() | {"packed_seq_params": params, "next_tokens": next_tokens_of(batch)})
    return {
        "reads": iterator is not None,
        "data": parallel_state.get_data_parallel_rank(),
        "tensor": parallel_state.get_tensor_model_parallel_rank(),
        "context": parallel_state.get_context_parallel_rank(),
        "batches": batches,
        "saved": None if wrapped is None else wrapped.iterable.save_state(),
    }


def next_tokens_of(batch):
    """What multi-token prediction has each token of a context-parallel rank predict, by Megatron's own code."""
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return None
    params = batch.packed_seq_params
    return roll_tensor(batch.tokens, shifts=-1, dims=-1, cp_group=group, packed_seq_params=params)[0]


def of_shared_bins(arguments, dataset):
    """What this rank computes of an epoch under dynamic context parallelism, and how often our code met other ranks."""
    target, _, tokens = arguments
    topology = Topology(balance="micro-step", accumulation=3)
    data = PackedData(target, dataset, tokens, topology=topology, loader=LoaderOptions(num_workers=0, device="cpu"))
    iterator = create_megatron_iterator(
        data, micro_batch_size=1, seq_length=256, sequence_parallel=True, dynamic_context_parallel=True
    )
    tensor_group, came, num_steps, counted = parallel_state.get_tensor_model_parallel_group(), [], [], []
    sums = torch.zeros(2, dtype=torch.float64)
    while not num_steps or num_steps[-1] > 0:
        whole, number = [], torch.zeros(1, dtype=torch.int64)
        if iterator is not None:
            with counting(counted):
                step = iterator.next_step()
            if iterator.state_dict()["epoch"] == 0:
                whole, number = list(step.micro_batches), number + step.num_microbatches
                sums += torch.tensor([step.num_tokens, step.sum_of_squares], dtype=torch.float64)
        dist.broadcast(number, dist.get_global_rank(tensor_group, 0), group=tensor_group)
        num_steps.append(int(number))
        micro_batches = None if iterator is None else iter(whole)
        for i in range(num_steps[-1]):
            batch = get_megatron_batch(micro_batches)._asdict()
            params = batch.pop("packed_seq_params")
            group = params.cp_group
            batch["ranks"] = None if group is None else dist.get_process_group_ranks(group)
            batch["cp_size"], batch["offsets"] = params.local_cp_size, params.cu_seqlens_q_padded
            batch["whole"] = whole[i] if whole else None
            if whole and len(batch["offsets"]) == 2:  # Megatron's own code takes one sequence
                batch["theirs"] = cut_by_megatron(whole[i])
            came.append(batch)
    return {
        "tensor": parallel_state.get_tensor_model_parallel_rank(),
        "rank": dist.get_rank(),
        "batches": came,
        "num_steps": num_steps,
        "num_collectives": len(counted),
        "sums": sums.tolist(),
    }


@contextmanager
def counting(counted):
    """Appends the name of every operation of torch.distributed that is called within."""
    real = {name: getattr(dist, name) for name in COLLECTIVES}

    def replacement(name):
        return lambda *args, **options: counted.append(name) or real[name](*args, **options)

    for name in real:
        setattr(dist, name, replacement(name))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(dist, name, function)


def cut_by_megatron(whole):
    """This rank's part of a micro-batch of one sequence, by `get_batch_on_this_hybrid_cp_rank`, on the CPU."""
    keys = ("tokens", "labels", "loss_mask", "position_ids")
    tensor = torch.tensor
    torch.tensor = lambda values, **_: tensor(values)
    try:
        batch, params = utils.get_batch_on_this_hybrid_cp_rank(
            {key: whole[key] for key in keys}, int(whole["local_cp_size"])
        )
    finally:
        torch.tensor = tensor
    assert params.local_cp_size == int(whole["local_cp_size"])
    return batch | {"ranks": None if params.cp_group is None else dist.get_process_group_ranks(params.cp_group)}


def by_megatron(arguments):
    """The first batch under context parallelism 2, cut by Megatron's own code for each of the two ranks."""
    utils.tex = SimpleNamespace(thd_get_partitioned_indices=partitioned)
    utils.is_te_min_version = lambda _: True
    dataset = PackedDataset(*arguments, batch_size=1, preset="megatron-lm", rank=(0, 1))
    rows = next(iter(dataset))
    cut = []
    for rank in range(2):
        batch = {key: rows[key] for key in ("tokens", "labels", "loss_mask", "position_ids", "padding_mask")}
        offsets = rows["cu_seqlens"][0]
        batch, params = utils.get_thd_batch_on_this_cp_rank(
            batch, offsets, offsets, rows["max_seqlen"], cp_size=2, cp_rank=rank
        )
        params = {name: value for name, value in asdict(params).items() if value is not None}
        cut.append(batch | {"packed_seq_params": params})
    return cut


def partitioned(cu_seqlens, num_tokens, size, rank):
    """Transformer Engine's kernel in Python, one token at a time (thd_partition_indices_kernel)."""
    offsets = [offset // size for offset in cu_seqlens.tolist()]
    indices = []
    for token in range(num_tokens // size):
        segment = max(i for i, offset in enumerate(offsets) if offset <= token)
        length = offsets[segment + 1] - offsets[segment]
        within = token - offsets[segment]
        offset = rank if within < length // 2 else (size - 1) * 2 - rank
        indices.append(within + offsets[segment] * size + length // 2 * offset)
    return torch.tensor(indices)


def losses_of_model(arguments):
    """Loss and gradients of Megatron's own model on a micro-batch, and on its sequences one by one.

    Without Transformer Engine its attention takes a mask and no offsets, so the mask is made of the offsets here.
    """
    torch.cuda.current_device = lambda: "cpu"
    CudaRNGStatesTracker.fork = lambda *_: nullcontext()
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=60_000, max_sequence_length=256)

    def losses(tokens, position_ids, labels, is_hidden):
        return model(tokens, position_ids, is_hidden[None, None], labels=labels)

    iterator = create_megatron_iterator(data_of(arguments, rank=(0, 1)), micro_batch_size=2)
    batch = get_megatron_batch(iterator)
    num_tokens = batch.tokens.shape[1]
    is_hidden = torch.ones(num_tokens, num_tokens, dtype=torch.bool)
    for start, end in pairwise(batch.packed_seq_params.cu_seqlens_q.tolist()):
        is_hidden[start:end, start:end] = ~torch.ones(end - start, end - start).tril().bool()
    packed = (losses(batch.tokens, batch.position_ids, batch.labels, is_hidden) * batch.loss_mask).sum()

    plain = next(iter(PackedDataset(*arguments, batch_size=2, rank=(0, 1), batch=BatchFormat(flatten=True))))
    alone = torch.zeros(())
    for start, end in pairwise(plain["cu_seqlens"].tolist()):
        tokens = plain["input_ids"][:, start:end]
        causal = ~torch.ones(end - start - 1, end - start - 1).tril().bool()
        positions = torch.arange(end - start - 1)[None]
        alone = alone + losses(tokens[:, :-1], positions, tokens[:, 1:], causal).sum()
    parameters = list(model.parameters())
    return [(loss.detach(), *torch.autograd.grad(loss, parameters)) for loss in (packed, alone)]


def main(rank, folder, arguments):
    """Goes through the cases as one of four ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    for name, sizes in CASES.items():
        parallel_state.initialize_model_parallel(**sizes)
        torch.save(of_case(arguments, name), folder / f"{name}-{rank}.pt")
        parallel_state.destroy_model_parallel()
    for name, (sizes, dataset) in SHARED.items():
        parallel_state.initialize_model_parallel(**sizes, hybrid_context_parallel=True)
        torch.save(of_shared_bins(arguments, dataset), folder / f"{name}-{rank}.pt")
        parallel_state.destroy_model_parallel()
        parallel_state._HYBRID_DP_CP_GROUPS.clear()  # which Megatron leaves
    parallel_state.initialize_model_parallel()
    if rank == 0:
        torch.save(by_megatron(arguments), folder / "by_megatron.pt")
        torch.save(losses_of_model(arguments), folder / "losses.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, arguments = Path(sys.argv[1]), sys.argv[2:]
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    context = mp.get_context("fork")  # Megatron takes seconds to import
    processes = [context.Process(target=main, args=(rank, folder, arguments)) for rank in range(WORLD_SIZE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
