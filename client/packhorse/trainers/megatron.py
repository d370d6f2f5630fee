"""Megatron: an endless iterator of packed micro-batches for its training loop.

Owns which ranks read data, iterating over epochs, and resuming from Megatron's checkpoints. Leaves the keys of a
micro-batch to `packhorse.client.presets`, batches and data-parallel ranks to `packhorse.client.loading`, bins that
ranks share under dynamic context parallelism to `_megatron_shared_bins`, and sending micro-batches to ranks that do not
read to `megatron_batch`. Importing this module needs no Megatron.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from packhorse.client import PackedDataLoader
from packhorse.client.loading.ranks import megatron_state
from packhorse.client.presets import megatron_lm_preset
from packhorse.client.streams.cursor import Resume
from packhorse.topology import ContextRule
from packhorse.trainers._data import PackedData
from packhorse.trainers._megatron_shared_bins import SharedBins, open_shared_bins

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
        self, loader: PackedDataLoader, *, seq_length: int | None = None, shared: SharedBins | None = None
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
            # The cursor counts the steps done of an unfinished optimizer step; after its last step there is no count.
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
        place = Path(folder) / f"iter_{iteration:07d}"
        saved = sorted(place.glob("mp_rank_*/train_dataloader_dprank000.pt"))
        if not saved:
            raise FileNotFoundError(
                f"no mp_rank_*/train_dataloader_dprank000.pt in {place}; give the folder of --dataloader-save and an "
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
    parallel_state = megatron_state()
    if parallel_state is not None and parallel_state.get_tensor_model_parallel_rank() != 0:
        return None
    tensor_parallel_size = parallel_state.get_tensor_model_parallel_world_size() if parallel_state is not None else 1
    if not sequence_parallel:  # then tensor parallelism needs no alignment of segments
        tensor_parallel_size = 1
    if dynamic_context_parallel:
        if micro_batch_size != 1 or consumed_samples:
            raise ValueError(
                "dynamic_context_parallel takes micro_batch_size 1, and load_saved instead of consumed_samples"
            )
        loader, shared = open_shared_bins(
            data, dynamic_context_parallel, parallel_state, tensor_parallel_size, seq_length
        )
        return MegatronIterator(loader, shared=shared)
    preset = megatron_lm_preset(
        context_parallel_size=parallel_state.get_context_parallel_world_size() if parallel_state is not None else 1,
        tensor_parallel_size=tensor_parallel_size,
    )
    loader = data.open(batch_size=micro_batch_size, preset=preset)
    iterator = MegatronIterator(loader, seq_length=seq_length)
    if consumed_samples:
        iterator.skip_samples(consumed_samples)
    return iterator
