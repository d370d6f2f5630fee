"""Megatron: an endless iterator of packed micro-batches for its training loop.

Owns which ranks read data, iterating over epochs, resuming from Megatron's checkpoints, and optimizer steps under
dynamic context parallelism. Leaves the keys of a micro-batch to `packhorse.client.presets`, batches and data-parallel
ranks to `packhorse.client.loading`, and sending micro-batches to ranks that do not read to `megatron_batch`. Importing
this module needs no Megatron.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist

from packhorse.client import LoaderOptions, PackedBatch, PackedDataLoader
from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.connecting import as_server
from packhorse.client.loading.folder import of_folder
from packhorse.client.loading.ranks import find_rank, megatron_state
from packhorse.client.options import as_run
from packhorse.client.presets import megatron_lm_preset
from packhorse.client.presets.megatron import check_segments, megatron_alignment
from packhorse.client.streams.cursor import Resume
from packhorse.parallel import context_batch
from packhorse.topology import ContextRule
from packhorse.trainers._data import PackedData

_NO_STEP = (
    "an epoch of this dataset has no step of this size; take fewer ranks or a smaller micro_batch_size, or a remainder "
    "other than 'drop'"
)
_KEYS = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen", "padding_mask")
"""Keys of a micro-batch without dynamic context parallelism."""


class MegatronStep(NamedTuple):
    """An optimizer step under dynamic context parallelism, as Megatron's `wrap_data_iterator` returns it.

    The sums are over all ranks. If Megatron's parallel state is not initialised, or the data names its rank, they are
    over the bins that this rank shares only.

    Example:
        >>> micro_batches, num_microbatches, num_tokens, sum_of_squares = iterator.next_step()  # doctest: +SKIP
    """

    micro_batches: Iterator[dict[str, torch.Tensor]]
    """Micro-batches of this rank; `get_megatron_batch` takes them one by one."""
    num_microbatches: int
    """Number of micro-batches, the same on all ranks."""
    num_tokens: float
    """Sum of the sequences' lengths."""
    sum_of_squares: float
    """Sum of the squares of the sequences' lengths."""


@dataclass(frozen=True)
class _SharedBins:
    """Dynamic context parallelism: makes this rank's micro-batches of bins that several ranks share.

    Below, "all ranks" are those of data and context parallelism together.
    """

    rule: ContextRule
    """How ranks share a bin."""
    rank: int
    """This rank, counted over all ranks."""
    tensor_parallel_size: int
    """Tensor-parallel ranks; 1 without sequence parallelism."""
    process_group: Any = None
    """The process group of all ranks, to add up sums; None if all ranks share one bin, so that every rank has the sums
    already, or if Megatron's parallel state is not used."""

    def over_ranks(self, sums: tuple[int, int], device: torch.device) -> list[float]:
        """Adds up sums over all ranks; each rank gives the sums of the bins that it shares.

        Every bin is so counted by all ranks that share it, and the total is divided by their number.
        """
        total = torch.tensor(sums, dtype=torch.float64, device=device)  # whole numbers up to 2^53 are exact
        if self.process_group is not None:
            dist.all_reduce(total, group=self.process_group)
            total /= self.rule.max_context_parallel
        return cast(list[float], total.tolist())

    def micro_batch(self, batch: PackedBatch) -> dict[str, torch.Tensor]:
        """Returns this rank's sequences, not divided over ranks, with the keys of Megatron's packed micro-batches.

        Legend: n sequences with T tokens of room.

        - `tokens`, `labels`, `position_ids`: int64 [T]; `loss_mask`: float32 [T]; `padding_mask`: bool [T].
        - `cu_seqlens`: offsets of lengths; `cu_seqlens_padded`: offsets of rooms; int32 [n + 1] each.
        - `max_seqlen`: the longest room; `local_cp_size`: the ranks that share the sequences; int32 [] each.

        A rank without sequences gets a sequence of padding without loss.
        """
        part = context_batch(batch, self.rule, self.rank, layout=None)
        device, offsets, lengths = part.input_ids.device, part.cu_seqlens.long(), part.lengths
        values = torch.stack([part.input_ids[0], part.labels[0], part.position_ids[0]])
        if part.num_tokens:
            align = megatron_alignment(part.cp_size, self.tensor_parallel_size)
            check_segments(offsets.diff().numpy(), align)
        else:
            lengths = torch.tensor([self.tensor_parallel_size])
            offsets = torch.tensor([0, self.tensor_parallel_size])
            values = values.repeat(1, self.tensor_parallel_size)
        tokens, labels, position_ids = values
        ends = torch.repeat_interleave(offsets[:-1] + lengths, offsets.diff())
        return {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": (labels != IGNORE_INDEX).float(),
            "position_ids": position_ids,
            "padding_mask": (torch.arange(len(ends)) >= ends).to(device),
            "cu_seqlens": torch.cat((torch.zeros(1), lengths.cumsum(0))).to(device, torch.int32),
            "cu_seqlens_padded": offsets.to(device, torch.int32),
            "max_seqlen": offsets.diff().max().to(device, torch.int32),
            "local_cp_size": torch.tensor(part.cp_size, dtype=torch.int32, device=device),
        }


class MegatronIterator:
    """Endless micro-batches, epoch after epoch, for Megatron's training loop.

    Made by `create_megatron_iterator`. Streams are opened by the first `next`, so a pipeline stage that never asks for
    a batch reads nothing.

    Example:
        >>> from packhorse.client import LoaderOptions
        >>> options = LoaderOptions(num_workers=0, device="cpu")
        >>> data = PackedData("embedded:datasets", "corpus", "corpus.idx", loader=options)
        >>> batches = create_megatron_iterator(data, micro_batch_size=1)
        >>> [next(batches)["cu_seqlens"].tolist() for _ in range(3)]  # two bins are an epoch
        [[[0, 5, 8]], [[0, 5, 8]], [[0, 5, 8]]]
        >>> batches.state_dict()["epoch"], batches.state_dict()["position"]
        (1, 1)

    Args:
        loader: the loader of this data-parallel rank, with the preset `megatron-lm`.
        seq_length: the tokens in a row for which Megatron allocates memory on ranks that do not read; None for any.
        shared: makes micro-batches under dynamic context parallelism; the loader then has no preset.
    """

    def __init__(
        self, loader: PackedDataLoader, *, seq_length: int | None = None, shared: _SharedBins | None = None
    ) -> None:
        self._loader = loader
        self._seq_length = seq_length
        self._shared = shared
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> "MegatronIterator":
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        """Returns the next micro-batch; see `megatron_lm_preset` for its keys.

        Under dynamic context parallelism it also has `local_cp_size` and `cu_seqlens_padded`, its tensors have no
        dimension of rows, and sequences are not yet divided over ranks.

        Raises:
            ValueError: the dataset's max_seq_len is not `seq_length`, or an epoch has no step at all.
        """
        batch = self._next_batch()
        if self._shared is not None:
            return self._shared.micro_batch(batch)
        row_tokens = batch["tokens"].shape[1]
        if self._seq_length not in (None, row_tokens):
            raise ValueError(
                f"the dataset was prepared with max_seq_len {row_tokens}, and seq_length is {self._seq_length}; start "
                f"Megatron with --seq-length {row_tokens}, or prepare the dataset with max_seq_len={self._seq_length}"
            )
        return {key: batch[key] for key in _KEYS}

    def next_step(self) -> MegatronStep:
        """Returns the micro-batches of the next optimizer step, under dynamic context parallelism.

        Call it in place of Megatron's `wrap_data_iterator`. Ranks exchange only the two sums, if they share more than
        one bin. The step has `accumulation` micro-batches, as in the data's topology, or fewer at the end of an epoch.

        Raises:
            ValueError: the iterator was made without dynamic_context_parallel, or an epoch has no step at all.
        """
        if self._shared is None:
            raise ValueError("next_step needs an iterator made with dynamic_context_parallel")
        micro_batches: list[dict[str, torch.Tensor]] = []
        num_tokens, sum_of_squares, is_done = 0, 0, False
        while not is_done:
            batch = self._next_batch()
            lengths = batch["layout"].lengths
            num_tokens += int(lengths.sum())
            sum_of_squares += int((lengths**2).sum())
            micro_batches.append(self._shared.micro_batch(batch))
            is_done = not batch["cursor"].get("steps_into_optimizer_step")
        sums = self._shared.over_ranks((num_tokens, sum_of_squares), micro_batches[0]["tokens"].device)
        return MegatronStep(iter(micro_batches), len(micro_batches), *sums)

    def state_dict(self) -> dict[str, Any]:
        """Returns the cursor of the last micro-batch that was returned, a plain dict that is the same on every rank."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after a cursor, under any data-parallel size and micro-batch size."""
        self._batches = None
        self._loader.load_state_dict(state)

    def save_state(self) -> dict[str, Any]:
        """Returns `state_dict()`. Megatron calls it by this name (`--dataloader-save DIR`)."""
        return self.state_dict()

    def load_saved(self, folder: str | Path, iteration: int) -> None:
        """Continues from the state that Megatron saved at an iteration in `--dataloader-save`.

        Every data-parallel rank reads the state that the first one saved, because all have the same cursor. So the
        number of ranks may have changed.

        Raises:
            FileNotFoundError: no state was saved in the folder at this iteration.
        """
        there = Path(folder) / f"iter_{iteration:07d}"
        saved = sorted(there.glob("mp_rank_*/train_dataloader_dprank000.pt"))
        if not saved:
            raise FileNotFoundError(
                f"no mp_rank_*/train_dataloader_dprank000.pt in {there}; give the folder of --dataloader-save and an "
                "iteration at which it was saved"
            )
        self.load_state_dict(torch.load(saved[0], map_location="cpu", weights_only=True)["dataloader_state_dict"])

    def skip_samples(self, consumed_samples: int) -> None:
        """Continues after this many samples, counted in bins of all ranks from the run's beginning.

        This is exact only if the data-parallel size and the micro-batch size have not changed since the run began,
        because the last step of each epoch is filled up to their product. If they have changed, load a state instead.

        Raises:
            ValueError: the number is negative, or not a multiple of the bins in a step.
        """
        topology = self._loader.dataset.topology
        bins_per_step = topology.bins_per_step
        steps, rest = divmod(consumed_samples, bins_per_step)
        if rest or consumed_samples < 0:
            raise ValueError(
                f"consumed_samples {consumed_samples} is not a multiple of the {bins_per_step} bins in a step of all "
                "ranks; it was counted under another data-parallel size or micro_batch_size: use load_saved or "
                "load_state_dict instead"
            )
        self._batches = None
        progress, resume = self._loader.dataset.progress, Resume(epoch=0)
        progress.choose(resume)
        while steps >= (num_steps := len(self._loader)):
            if num_steps == 0:
                raise ValueError(_NO_STEP)
            steps -= num_steps
            resume = resume.at_epoch(resume.epoch + 1)
            progress.choose(resume)
        position = steps // topology.steps_per_optimizer_step * topology.bins_per_optimizer_step
        first_step = steps % topology.steps_per_optimizer_step
        progress.choose(replace(resume, first_step=first_step, position=position, is_resumed=True))

    def close(self) -> None:
        """Ends the workers."""
        self._batches = None
        self._loader.close()

    def _next_batch(self) -> Any:
        """Returns the next batch, if need be of the next epoch."""
        batch = self._next_of_epoch()
        if batch is None:  # the loader has moved to the next epoch
            batch = self._next_of_epoch()
        if batch is None:
            raise ValueError(_NO_STEP)
        return batch

    def _next_of_epoch(self) -> Any:
        """Returns the next batch of the epoch; None at its end, after which the loader is at the next epoch."""
        if self._batches is None:
            self._batches = iter(self._loader)
        batch = next(self._batches, None)
        if batch is None:
            self._batches = None
        return batch


def create_megatron_iterator(
    data: PackedData,
    *,
    micro_batch_size: int,
    seq_length: int | None = None,
    sequence_parallel: bool = False,
    consumed_samples: int = 0,
    dynamic_context_parallel: ContextRule | bool = False,
) -> MegatronIterator | None:
    """Returns an iterator of packed micro-batches for Megatron, on ranks that read data; None on the others.

    The first rank of each tensor-parallel group reads; Megatron, or `get_megatron_batch`, sends its batches to the
    others. Data-parallel ranks, and the sizes of tensor and context parallelism, come from Megatron's parallel state,
    if it is initialised. Give the iterator to Megatron with `--dataloader-type external --sft`:

    ```
    def train_valid_test_datasets_provider(num_samples):
        args = get_args()
        train = create_megatron_iterator(
            PackedData("packhorse:50051", "corpus", "corpus.idx", seed=args.seed),
            micro_batch_size=args.micro_batch_size, seq_length=args.seq_length,
            consumed_samples=args.consumed_train_samples,
        )
        return train, None, None
    ```

    Megatron-LM's own `get_batch` takes these micro-batches if micro_batch_size is 1, and since core 0.19 for any size.
    Up to core 0.16 it cannot combine packed sequences with tensor or context parallelism; then call
    `get_megatron_batch` in `forward_step`.

    Example:
        >>> from packhorse.client import LoaderOptions
        >>> options = LoaderOptions(num_workers=0, device="cpu")
        >>> data = PackedData("embedded:datasets", "corpus", "corpus.idx", loader=options)
        >>> batches = create_megatron_iterator(data, micro_batch_size=2)
        >>> next(batches)["tokens"].tolist()
        [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 4, 0, 1, 2]]

    Args:
        data: the training data, with the rank in its `loader` if Megatron's parallel state is not initialised.
        micro_batch_size: bins in a micro-batch, for each data-parallel rank.
        seq_length: Megatron's `--seq-length`; must equal the dataset's max_seq_len. None skips the check.
        sequence_parallel: whether Megatron runs with `--sequence-parallel`, which needs a larger `prepare --align`.
        consumed_samples: continue after this number of samples; see `MegatronIterator.skip_samples`.
        dynamic_context_parallel: whether each micro-batch has a context-parallel size of its own. True for a dataset
            prepared with `tokens_per_rank`, whose rule the server is asked for; a ContextRule for any other dataset.
            Then `max_context_parallel` neighbours among the ranks of data and context parallelism share bins, and
            micro_batch_size is 1.

    Raises:
        ValueError: an argument is out of range, the data has a preset, a batch size or a batch schedule, or its dataset
            has no rule.
        PackhorseError: no server answers, or it lacks the dataset.
    """
    if data.preset is not None or (data.batch is not None and data.batch.preset is not None):
        raise ValueError("create_megatron_iterator sets the preset itself; leave preset out")
    if data.batch_size is not None:
        raise ValueError("create_megatron_iterator takes micro_batch_size; leave batch_size out")
    data.refuse_schedule(
        "Megatron itself changes how many micro-batches make a step; give the schedule to its "
        "--step-batch-size-schedule",
    )
    state = megatron_state()
    if state is not None and state.get_tensor_model_parallel_rank() != 0:
        return None
    tensor_parallel_size = state.get_tensor_model_parallel_world_size() if state is not None else 1
    if not sequence_parallel:
        tensor_parallel_size = 1
    if dynamic_context_parallel:
        if micro_batch_size != 1 or consumed_samples:
            raise ValueError(
                "dynamic_context_parallel takes micro_batch_size 1, and load_saved instead of consumed_samples"
            )
        rule = _rule_of(data) if dynamic_context_parallel is True else dynamic_context_parallel
        return _of_shared_bins(data, rule, state, tensor_parallel_size, seq_length)
    preset = megatron_lm_preset(
        context_parallel_size=state.get_context_parallel_world_size() if state is not None else 1,
        tensor_parallel_size=tensor_parallel_size,
    )
    loader = data.open(batch_size=micro_batch_size, preset=preset)
    iterator = MegatronIterator(loader, seq_length=seq_length)
    if consumed_samples:
        iterator.skip_samples(consumed_samples)
    return iterator


def _rule_of(data: PackedData) -> ContextRule:
    """Asks the server for the rule by which ranks share the dataset's bins; a ValueError if it has none."""
    target, dataset, _ = of_folder(data.target, data.dataset, data.tokens)
    server, name = as_server(target), as_run(dataset).dataset

    def ask() -> ContextRule | None:
        with server.open() as client:
            return client.get_dataset(name).context_rule

    rule = server.ask(ask)
    if rule is None:
        raise ValueError(
            f"dynamic_context_parallel needs a dataset prepared with tokens_per_rank, and {name} was not: prepare it "
            "so, or give a ContextRule"
        )
    return rule


def _of_shared_bins(
    data: PackedData, rule: ContextRule, state: Any, tensor_parallel_size: int, seq_length: int | None
) -> MegatronIterator:
    """Returns an iterator under dynamic context parallelism."""
    options, process_group = data.loader or LoaderOptions(), None
    if state is None or options.rank is not None:
        rank, num_ranks = find_rank(options.rank)
    else:
        rank = state.get_data_parallel_rank(with_context_parallel=True)
        num_ranks = state.get_data_parallel_world_size(with_context_parallel=True)
        if num_ranks > rule.max_context_parallel:
            process_group = state.get_data_parallel_group(with_context_parallel=True)
    of_loader = rule.of_loader(rank, num_ranks)
    if seq_length not in (None, rule.max_seq_len):
        raise ValueError(f"bins of the rule have {rule.max_seq_len} tokens, and seq_length is {seq_length}")
    loader = replace(data, loader=replace(options, rank=of_loader)).open(batch_size=1)
    return MegatronIterator(loader, shared=_SharedBins(rule, rank, tensor_parallel_size, process_group))
