"""`PackedData`: the description of a packed dataset, for training or validation, that a user gives to a trainer.

Owns merging the user's values with those that a trainer knows itself, such as batch size, ranks and device; each
trainer's module passes them. Leaves batches to `packhorse.client.loading`, and repeating a validation set to
`_validation`.
"""

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any

from packhorse.client import (
    BatchFormat,
    LoaderOptions,
    PackedDataLoader,
    Run,
    Server,
    create_packed_dataloader,
)
from packhorse.client.batches import Media
from packhorse.client.connecting import Target
from packhorse.client.presets import Preset, PresetName
from packhorse.topology import Balance, Topology


@dataclass(frozen=True)
class PackedData:
    """A packed dataset for a trainer, which fills in the values that you leave out.

    Example:
        >>> data = PackedData("embedded:datasets", "corpus", "corpus.idx", num_workers=0)
        >>> len(data.open(batch_size=1, loader=LoaderOptions(device="cpu")))
        2
        >>> len(PackedData("datasets/corpus", num_workers=0).open(batch_size=1, loader=LoaderOptions(device="cpu")))
        2
    """

    target: Target | Server
    """The server: an address as `connect` takes it, a function that returns a Client, or a Server. Or, without
    `dataset`, the path of a prepared folder or of a mixture's file."""
    dataset: str | Run | None = None
    """Name of the dataset on the server, or a Run; None if `target` is a folder or a file."""
    tokens: Any = None
    """A TokenSource, a path of a token file, or anything that gives a sequence's tokens for its id. None for the tokens
    from which the folder was prepared.
    """
    _: KW_ONLY
    batch_size: int | None = None
    """Bins in a batch, for each rank."""
    seed: int | None = None
    """Seed of the run."""
    preset: Preset | PresetName | None = None
    """Name of a training stack, or a Preset."""
    num_workers: int | None = None
    """Worker processes."""
    topology: Topology | None = None
    """How ranks share the epoch: balance, remainder policy, mode and so on."""
    batch: BatchFormat | None = None
    """The form of a batch: separators, labels, loss mask and so on."""
    loader: LoaderOptions | None = None
    """Options of the loader: which rank this process is, and what workers prefetch."""

    @property
    def own_preset(self) -> Preset | PresetName | None:
        """The preset that this data names, in `preset` or in `batch`; None if neither has one."""
        return self.preset or (None if self.batch is None else self.batch.preset)

    @property
    def media(self) -> Media | None:
        """The description of images in its batches; None for text without images."""
        return None if self.batch is None else self.batch.media

    def with_defaults(self, other: "PackedData") -> "PackedData":
        """Returns this data with the values of `other` for fields that are None."""
        optional = ("batch_size", "seed", "preset", "num_workers", "topology", "batch", "loader")
        return replace(self, **{name: getattr(other, name) for name in optional if getattr(self, name) is None})

    def refuse_schedule(self, why: str) -> None:
        """Refuses a batch size that changes during training, for a trainer that counts with a constant one.

        Args:
            why: why the trainer needs a constant one, and what to do instead; for the message.

        Raises:
            ValueError: the topology has a schedule.
        """
        if self.topology is not None and self.topology.batch_schedule is not None:
            raise ValueError(f"batch_schedule '{self.topology.batch_schedule}' cannot be given here: {why}")

    def open(
        self,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        preset: Preset | PresetName | None = None,
        accumulation: int = 1,
        loader: LoaderOptions | None = None,
    ) -> PackedDataLoader:
        """Returns a loader; the arguments are a trainer's values, for fields that this data leaves out."""
        topology = self.topology
        # A balance exchanges bins within an optimizer step, whose number of steps the trainer knows.
        if topology is not None and topology.balance is not Balance.NONE and topology.accumulation == 1:
            topology = replace(topology, accumulation=accumulation)
        if self.batch_size is not None:
            batch_size = self.batch_size
        elif topology is not None and batch_size == topology.batch_size:
            batch_size = None  # given twice, with the same value
        if self.own_preset is not None:
            preset = self.preset  # None if `batch` names the preset
        default_seed = None if isinstance(self.dataset, Run) else seed  # a Run has a seed of its own
        return create_packed_dataloader(
            self.target,
            self.dataset,
            self.tokens,
            batch_size=batch_size,
            seed=default_seed if self.seed is None else self.seed,
            preset=preset,
            topology=topology,
            batch=self.batch,
            loader=self._loader_options(loader or LoaderOptions()),
        )

    def _loader_options(self, of_trainer: LoaderOptions) -> LoaderOptions:
        """Returns the loader's options: this data's values that differ from the defaults, else the trainer's."""
        ours, default = self.loader or LoaderOptions(), LoaderOptions()
        given = {
            field.name: getattr(ours, field.name)
            for field in fields(ours)
            if getattr(ours, field.name) != getattr(default, field.name)
        }
        if self.num_workers is not None:
            given["num_workers"] = self.num_workers
        return replace(of_trainer, **given)
