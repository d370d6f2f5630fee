"""`PackedBins`: an epoch's bins as rows by index, for other loaders and samplers.

Owns the keys of a row, and the headers of the epochs. Leaves the meaning of an index to `_indices`, requests to
`_bins_reader`, when rows are made to `_rows`, and making batches, from which rows are cut, to
`_batch_maker`.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import index as as_index
from typing import Any, Literal, SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from packhorse.client.api import Client
from packhorse.client.argument_hints import with_hints
from packhorse.client.batches.packed_batch import Batch, PackedBatch
from packhorse.client.connecting import Server, Target, as_server
from packhorse.client.loading._agreement import digest_of_ranks
from packhorse.client.loading._batch_maker import BatchMaker
from packhorse.client.loading._bins_reader import BinsReader
from packhorse.client.loading._indices import BinAddress, Indices
from packhorse.client.loading._progress import Progress
from packhorse.client.loading._rows import Rows
from packhorse.client.loading.folder import resolve_folder
from packhorse.client.loading.workers.preemption import outlive_preemption
from packhorse.client.options import Run, as_run, with_arguments
from packhorse.client.presets import BatchFormat, Preset, PresetName
from packhorse.client.streams.blocks import BinBlock, joined
from packhorse.client.streams.cursor import Cursor, Resume
from packhorse.topology import Topology, checked_integer
from packhorse.types import StreamHeader

_ROW_KEYS = ("input_ids", "labels", "sequence_ids", "position_ids")
"""The keys of PackedBatch that a row has without a preset. There is no `attention_mask`: with one, a model of Hugging
Face would look for padding instead of the bounds of sequences."""

_ONE_BIN = Topology()
"""One rank with one bin in a step: rows have no other topology."""
_NO_BINS = BinBlock(
    ids=np.zeros(0, dtype=np.int64),
    lengths=np.zeros(0, dtype=np.int32),
    bin_ends=np.zeros(0, dtype=np.int64),
    positions=np.zeros(0, dtype=np.int64),
)


@dataclass(slots=True, eq=False)
class _OfProcess:
    """What belongs to one process: a fork makes its own."""

    pid: int
    reader: BinsReader
    assembling: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that makes a batch."""
    is_prepared: bool = False
    """Whether this process's BatchMaker was prepared for the dataset."""


class PackedBins(Dataset[dict[str, Any]]):
    """An epoch's bins as a map-style dataset, with `len` and `[position]`. One request brings many positions.

    It is for a DataLoader with a sampler, Hugging Face's Trainer, accelerate, Grain and other code that reads by index.
    The epoch is already shuffled, so `shuffle=False` loses nothing; `shuffle=True` is exact as well. The sampler
    decides which rank reads which index. A sampler that repeats indices if the rows do not fill a step
    (DistributedSampler, accelerate) repeats sequences: `num_bins_multiple_of` prevents that.

    ```
    bins = PackedBins("127.0.0.1:50051", "corpus", "corpus.idx", seed=1, num_bins_multiple_of=world_size * 8)
    sampler = DistributedSampler(bins, shuffle=False)
    for epoch in range(3):
        bins.set_epoch(epoch)
        for batch in DataLoader(bins, batch_size=8, sampler=sampler, num_workers=2):
            ...
    ```

    A row is a dict of tensors [max_seq_len] that stack: `input_ids`, `labels`, `sequence_ids` and `position_ids` as in
    PackedBatch, and `position`, an int64 scalar, -1 for an empty bin. A mixture's rows also have `component_id`, the
    index of their component. With a preset, a row has that training stack's keys.
    For whole batches, with the layout that masks are made from, give the DataLoader `collate_fn=bins.collate`.
    Hugging Face's Trainer takes `preset="rows"` as it is, and `preset="padding-free"` with `data_collator=bins.collate`
    and `remove_unused_columns=False`.

    A forked or pickled copy opens its own connection when it is first read. Bins are read ahead if indices are evenly
    spaced, so that reading in order makes few requests.

    Example:
        >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1)
        >>> len(bins), bins[1]["input_ids"].tolist()
        (2, [0, 1, 2, 3, 4, 0, 1, 2])
        >>> batch = next(iter(torch.utils.data.DataLoader(bins, batch_size=2)))
        >>> batch["input_ids"].shape, batch["position"].tolist()
        (torch.Size([2, 8]), [0, 1])

    Args:
        target: a target of `connect`, a function that returns a Client, or a Server. Without `dataset`, the path of a
            prepared folder or of a mixture's file.
        dataset: its name on the server, or a Run, which can also skip positions and begin at a later epoch; None for
            the folder's.
        tokens: a TokenSource, a path of token files, or anything that gives a sequence's tokens for its id; None for
            those that the folder was prepared from.
        seed: of the run, in [0, 2^64); None for the seed of the Run, or 0.
        preset: name of a preset, or a Preset. With one that joins the bins of a batch into one row, use
            `collate_fn=bins.collate`.
        num_epochs: number of epochs in the indices, each in its own order, for loaders without `set_epoch` (Grain):
            with N bins, index N is position 0 of the next epoch. The epoch of index 0 is the first of them, also after
            a cursor.
        num_bins_multiple_of: empty bins, all padding, fill each epoch up to a multiple of this number of rows.
        batch: how a row, or `collate`'s batch, looks.
        output: "torch" for tensors; "numpy" for plain dicts of arrays, for Grain and JAX.

    Raises:
        ValueError: an argument is out of range, or has no effect on rows.
    """

    @with_hints
    def __init__(
        self,
        target: Target | Server,
        dataset: str | Run | None = None,
        tokens: Any = None,
        *,
        seed: int | None = None,
        preset: Preset | PresetName | None = None,
        num_epochs: int = 1,
        num_bins_multiple_of: int = 1,
        batch: BatchFormat | None = None,
        output: Literal["torch", "numpy"] = "torch",
    ) -> None:
        if output not in ("torch", "numpy"):
            raise ValueError(f"output must be 'torch' or 'numpy', got {output!r}")
        target, dataset, tokens = resolve_folder(target, dataset, tokens)
        self.run = as_run(dataset, seed)
        self.num_epochs = checked_integer("num_epochs", num_epochs, 1)
        self.num_bins_multiple_of = checked_integer("num_bins_multiple_of", num_bins_multiple_of, 1)
        form = with_arguments(batch or BatchFormat(), preset=preset)
        if form.component_rows:
            raise ValueError("component_rows has no effect on PackedBins: a row is a bin; use PackedDataset")
        if form.media is not None:
            raise ValueError("media cannot be used with PackedBins, whose rows must stack; use PackedDataset")
        if form.shared_prefix == "tree" or (isinstance(form.preset, Preset) and form.preset.folds):
            raise ValueError("trees cannot be used with PackedBins, whose rows must stack; use PackedDataset")
        self._server = as_server(target)
        self._output = output
        self._maker = BatchMaker(tokens, form)
        self._progress = Progress(self.run.epoch, self.run.seed, _ONE_BIN)
        self._agreed = digest_of_ranks(self._server, self.run)
        self._headers: dict[tuple[str, int], StreamHeader] = {}  # (skipped ranges, first position) → an epoch's header
        self._indices: Indices | None = None
        self._of_process: _OfProcess | None = None
        self._locks: dict[int, threading.RLock] = {}  # by process id: a fork must not wait for a thread of its parent

    @property
    def epoch(self) -> int:
        """The epoch of index 0."""
        return self._progress.next.epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of index 0, also in workers that are already running. Call it between iterations.

        If it is the current epoch, nothing changes, so that a resumed epoch keeps its position.

        Raises:
            ValueError: the epoch is negative, or a cursor was loaded and the epoch is already done.
        """
        self._progress.set_epoch(checked_integer("epoch", epoch, 0))

    def cursor_after(self, num_rows: int) -> Cursor:
        """Returns the cursor after rows [0, num_rows), over all ranks.

        Save it with the model. `load_state_dict` of PackedBins or PackedDataset continues there, under any number of
        ranks.

        Example:
            >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1)
            >>> cursor = bins.cursor_after(1)
            >>> bins.load_state_dict(cursor)
            >>> len(bins), cursor["epoch"], cursor["position"]
            (1, 0, 1)

        Raises:
            IndexError: there are fewer rows.
            ValueError: `num_rows` is not an integer of at least 0.
        """
        if not checked_integer("num_rows", num_rows, 0):
            resume = self._progress.next
            epoch, position, digest = resume.epoch, resume.position, self._current_indices().headers[0].digest
        else:
            address = self._current_indices().find(num_rows - 1)
            epoch, digest = address.epoch, address.header.digest
            position = min(address.position + 1, address.header.num_bins)
        return Cursor(digest=digest, seed=self.run.seed, epoch=epoch, position=position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at a cursor: index 0 is then its position, and earlier positions are left out.

        Raises:
            ValueError: it is not a cursor, was saved with another seed, or is within an optimizer step.
        """
        resume = self._progress.read(state)
        if resume.first_step:
            raise ValueError(
                "the cursor is within an optimizer step of a balanced run, whose bins were not trained on in their "
                "order; resume with PackedDataset, or from a cursor at an optimizer step's end"
            )
        self._headers = {}
        self._progress.choose(resume)

    def __len__(self) -> int:
        """Number of rows in all epochs together; asks the server once, in a child process (see `Server.ask`)."""
        return self._current_indices().ends[-1]

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Returns one row; negative indices count from the end.

        Raises:
            IndexError: there is no such row.
            ValueError: the preset or the format makes whole batches, not rows.
        """
        indices = self._current_indices()
        from_start = indices.from_start(as_index(index))
        return self._opened().reader.rows(indices).row(from_start)

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> "Rows":
        """Returns many rows by one request. A DataLoader calls this for a batch.

        Raises:
            IndexError: there is no such row.
        """
        current = self._current_indices()
        return Rows(self._bins([current.find(as_index(index)) for index in indices]), self._rows_of)

    def _getitems(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns many rows as a list; Grain calls this to read many records at once."""
        return list(self.__getitems__(indices))

    def collate(self, rows: "Rows") -> Batch:
        """Makes one batch of the bins that `__getitems__` returned. Pass it to a DataLoader as `collate_fn`.

        The batch is as PackedDataset yields it, but without a cursor: with `layout`, `cu_seqlens` and `ids`, or with
        the preset's keys. A worker sends it as one block of memory.

        Example:
            >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1, preset="padding-free")
            >>> loader = torch.utils.data.DataLoader(bins, batch_size=2, collate_fn=bins.collate)
            >>> next(iter(loader))["cu_seq_lens_q"].tolist()
            [0, 5, 8, 13, 16]

        Raises:
            ValueError: `rows` are not the object that `__getitems__` returned.
        """
        if not isinstance(rows, Rows):
            raise ValueError(
                "collate takes what bins.__getitems__ returned, whole; give bins itself (or a Subset of it) to the "
                "DataLoader with batch_size, and Hugging Face's Trainer remove_unused_columns=False"
            )
        return self._maker.convert(self._assemble(rows.bins))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields every row in order."""
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        """Returns the dataset and its order, without the server: Grain compares this text with a checkpoint's."""
        facts = [str(self.run), f"epoch={self.epoch}", f"num_epochs={self.num_epochs}"]
        if self.num_bins_multiple_of > 1:
            facts.append(f"num_bins_multiple_of={self.num_bins_multiple_of}")
        return f"PackedBins({', '.join(facts)})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_of_process": None, "_locks": {}}

    def _rows_of(self, bins: BinBlock) -> list[dict[str, Any]]:
        """Makes one row of each bin.

        Raises:
            ValueError: the preset lays the bins of a batch end to end, or has keys that belong to a batch as a whole.
        """
        preset = self._maker.preset
        if self._maker.form.is_flat or not (preset is None or preset.has_rows):
            what = "flatten=True" if preset is None else f"preset {preset.name!r}"
            raise ValueError(
                f"{what} makes one batch of many bins, not rows; give the DataLoader collate_fn=bins.collate"
            )
        batch = self._assemble(bins)
        columns: dict[str, Any] = self._maker.convert(batch)
        if preset is None:
            columns = {name: columns[name] for name in _ROW_KEYS} | {"position": torch.tensor(bins.positions)}
            if "bin_component_ids" in batch:
                columns["component_id"] = batch["bin_component_ids"]
        as_row: type[dict[str, Any]] = Batch
        if self._output == "numpy":
            columns = {name: [np.asarray(item) for item in column] for name, column in columns.items()}
            as_row = dict  # JAX and Grain look into plain dicts only
        return [as_row({name: column[i] for name, column in columns.items()}) for i in range(len(bins))]

    def _assemble(self, bins: BinBlock) -> PackedBatch:
        """Makes one batch of bins; prepares the maker at this process's first call."""
        own = self._opened()
        with own.assembling:  # one thread at a time: a source may hold state between its calls for one batch
            if not own.is_prepared:
                self._maker.prepare(self._current_indices().headers[0])
                own.is_prepared = True
            return self._maker.assemble(bins)

    def _bins(self, addresses: Sequence[BinAddress]) -> BinBlock:
        """Returns the bins at some addresses: by one request, or by one for each epoch if they are in several."""
        parts = []
        for (epoch, is_empty), group in groupby(addresses, key=lambda address: (address.epoch, address.is_empty)):
            adjacent = list(group)
            if is_empty:
                parts.append(_NO_BINS.padded(len(adjacent)))
            else:
                read_ahead = self._opened().reader.bins_of_epoch(epoch, adjacent[0].header)
                parts.append(read_ahead.bins([address.position for address in adjacent]))
        return joined(parts or [_NO_BINS])

    def _current_indices(self) -> Indices:
        """Returns the meaning of indices; made again after another epoch or cursor was chosen."""
        choice = self._progress.choice
        if self._indices is None or self._indices.choice != choice:
            with self._lock:
                resume = self._progress.next
                later = (resume.at_epoch(resume.epoch + number) for number in range(1, self.num_epochs))
                headers = [self._header(begin) for begin in (resume, *later)]
                self._indices = Indices(choice, resume, headers, self.num_bins_multiple_of)
        return self._indices

    def _header(self, resume: Resume) -> StreamHeader:
        """Returns the header of one epoch, from the server at the first call.

        A child process asks, so that this process may fork workers; but not in a worker, or if this process has read
        bins already and so is connected.
        """
        key = str(self.run.skips(resume.epoch)), resume.position
        if key not in self._headers:
            is_connected = self._of_process is not None and self._of_process.pid == os.getpid()
            if is_connected or get_worker_info() is not None:
                self._headers[key] = self._ask_header(resume, self._opened().reader.client)
            else:
                self._headers[key] = self._server.ask(partial(self._ask_header_anew, resume))
        return self._headers[key]

    def _ask_header_anew(self, resume: Resume) -> StreamHeader:
        """Returns the header of an epoch's stream, over a new connection."""
        with self._server.open() as client:
            return self._ask_header(resume, client)

    def _ask_header(self, resume: Resume, client: Client) -> StreamHeader:
        """Returns the header of an epoch's stream; the server compares the digest."""
        with client.stream_bins(
            self.run.dataset,
            epoch=resume.epoch,
            seed=self.run.seed,
            topology=Topology(start_position=resume.position),
            skip=self.run.skips(resume.epoch),
            expected_digest=resume.digest or self._known_digest(),
        ) as stream:
            self.run.check_skips(resume.epoch, stream.header)
            return stream.header

    def _known_digest(self) -> str:
        """Returns the digest that this run reads: of the first answer, or as its ranks agreed; "" if unknown."""
        return next((header.digest for header in self._headers.values()), self._agreed)

    def _opened(self) -> _OfProcess:
        """Returns what this process has opened; opens it at the first call, and again after a fork."""
        own = self._of_process
        if own is None or own.pid != os.getpid():
            with self._lock:
                own = self._of_process
                if own is None or own.pid != os.getpid():
                    if get_worker_info() is not None:
                        outlive_preemption(lambda: self._progress.is_exiting)
                    client = self._server.open()
                    reader = BinsReader(
                        client, self.run, self._getitems, self._lock, with_tokens=self._maker.wants_tokens
                    )
                    own = self._of_process = _OfProcess(os.getpid(), reader)
        return own

    @property
    def _lock(self) -> threading.RLock:
        """The lock of this process."""
        return self._locks.setdefault(os.getpid(), threading.RLock())
