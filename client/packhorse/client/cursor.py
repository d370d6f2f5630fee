"""Where training stands, in a form that every checkpoint can hold.

Owns the cursor's fields and the check of one that is loaded; leaves moving it to `dataset`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

STATE_VERSION = 1

NO_POSITION = -1
"""A cursor's position where none could be resumed at: each worker of an INDEPENDENT dataset stands somewhere else."""


class Cursor(TypedDict):
    """The whole state of training data: nothing but these four is needed to go on, under any topology.

    A plain dict of str and int, so that JSON and torch.load(weights_only=True) take it.
    """

    digest: str
    """Of the dataset."""
    seed: int
    """Of the run."""
    epoch: int
    """0-based."""
    position: int
    """The position to resume at; NO_POSITION where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where an iteration begins."""

    epoch: int
    """0-based."""
    start_position: int = 0
    """Where step 0 is counted from."""
    first_step: int = 0
    """Steps below it are left out."""
    digest: str = ""
    """Digest that the dataset must have; empty for any."""
    is_resumed: bool = False
    """Whether a cursor was loaded: its run's earlier epochs are done."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, seed: int, bins_per_step: int) -> "Resume":
        """Reads a cursor, or the fuller state that `PackedDataset.state_dict` returns.

        A cursor resumes under any topology. A worker's own state, which a StatefulDataLoader saves, also holds which
        step comes next for that worker; it fits only the topology that it was saved under.

        Raises:
            ValueError: fields are missing, the seed is another, or a worker's state meets another topology.
        """
        missing = [name for name in Cursor.__annotations__ if name not in state]
        if missing:
            raise ValueError(f"not a cursor: {', '.join(missing)} missing; pass a batch's 'cursor' or a state_dict()")
        if state.get("version", STATE_VERSION) != STATE_VERSION:
            raise ValueError(f"state version {state['version']!r} is not known; resume from a batch's 'cursor' instead")
        if state["seed"] != seed:
            raise ValueError(
                f"the cursor was saved under seed {state['seed']}, this dataset has seed {seed}; make it with the "
                "cursor's seed to go on"
            )
        epoch, digest = int(state["epoch"]), str(state["digest"])
        if state.get("finished"):
            return cls(epoch=epoch + 1, digest=digest, is_resumed=True)
        if "first_step" not in state:
            if state["position"] == NO_POSITION:
                raise ValueError(
                    "this cursor is of mode 'independent' with several workers, and cannot say where each of them "
                    "stands; resume with a StatefulDataLoader's state, or train with one worker for each rank or with "
                    "mode 'partition'"
                )
            return cls(epoch=epoch, start_position=int(state["position"]), digest=digest, is_resumed=True)
        if state["bins_per_step"] != bins_per_step:
            raise ValueError(
                f"this state was saved with {state['bins_per_step']} bins in a step, now there are {bins_per_step}: "
                "under another world_size or batch_size resume from a batch's 'cursor' instead"
            )
        return cls(
            epoch=epoch,
            start_position=int(state["start_position"]),
            first_step=int(state["first_step"]),
            digest=digest,
            is_resumed=True,
        )

    def at_epoch(self, epoch: int) -> "Resume":
        """The beginning of another epoch of the same run."""
        return replace(self, epoch=epoch, start_position=0, first_step=0)
