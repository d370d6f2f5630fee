"""Where training is, in a form that every checkpoint can hold.

Owns the cursor's fields and the check of one that is loaded; leaves moving it to `dataset`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

from packhorse.topology import Topology, checked_integer

_LOG = logging.getLogger(__name__)

STATE_VERSION = 1

_MOST = 2**63 - 1

NO_POSITION = -1
"""A cursor's position where none could be resumed at: each worker of an INDEPENDENT dataset is somewhere else."""


class Cursor(TypedDict):
    """The whole state of training data: the first four are all that is needed to go on, under any topology.

    A plain dict of str and int, so that JSON and torch.load(weights_only=True) take it.

    With a balance the position moves on at optimizer steps, because the bins of one are exchanged. Within one, the
    same topology goes on after `steps_into_optimizer_step`; any other begins the optimizer step again.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, seed=1)
        >>> cursor = next(iter(dataset))["cursor"]
        >>> cursor["seed"], cursor["epoch"], cursor["position"]
        (1, 0, 1)
    """

    digest: str
    """Of the dataset, and of what is skipped."""
    seed: int
    """Of the run."""
    epoch: int
    """0-based."""
    position: int
    """The position to resume at; NO_POSITION where there is none."""
    steps_into_optimizer_step: NotRequired[int]
    """Steps from the position on that have been consumed, of an optimizer step that is not done."""
    optimizer_step_shape: NotRequired[str]
    """The topology under which they were, see `optimizer_step_shape`."""


REQUIRED_FIELDS = ("digest", "seed", "epoch", "position")


def optimizer_step_shape(topology: Topology) -> str:
    """Returns what decides which rank gets which bin of an optimizer step, as text.

    Example:
        >>> optimizer_step_shape(Topology(world_size=4, batch_size=2, accumulation=8, balance="micro-step"))
        '4 ranks × 2 bins × 8 steps, micro-step, 24576, spread'
    """
    return (
        f"{topology.world_size} ranks × {topology.batch_size} bins × {topology.accumulation} steps, "
        f"{topology.balance}, {topology.cost_linear}, {topology.remainder}"
    )


def bins_per_step_of(topology: Topology) -> int | str:
    """Returns what decides where steps begin: the bins of all ranks in one, or the schedule of their number.

    Example:
        >>> bins_per_step_of(Topology(world_size=4, batch_size=2)), bins_per_step_of(Topology(batch_size="0:8 1B:16"))
        (8, '0:8 1B:16')
    """
    return topology.bins_per_step if isinstance(topology.batch_size, int) else str(topology.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where an iteration begins."""

    epoch: int
    """0-based."""
    start_position: int = 0
    """Where step 0 is counted from."""
    first_step: int = 0
    """Steps below it are left out."""
    position: int = 0
    """Where the optimizer step of first_step begins: what a cursor says."""
    first_turn: int = 0
    """A step that worker 0 serves; the others take their turns from there. A DataLoader asks worker 0 first."""
    digest: str = ""
    """Digest that the dataset must have; empty for any."""
    is_resumed: bool = False
    """Whether a cursor was loaded: its run's earlier epochs are done."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, seed: int, topology: Topology) -> "Resume":
        """Reads a cursor, the fuller state that `PackedDataset.state_dict` returns, or a StatefulDataLoader's.

        A cursor and a whole StatefulDataLoader's state resume under any topology. A worker's own state also holds which
        step comes next for that worker; it fits only the topology that it was saved under.

        Raises:
            ValueError: fields are missing, the seed is another, or a worker's state meets another topology.
        """
        state = _checked(state, seed)
        epoch, digest = state.get("epoch", 0), state["digest"]
        if state.get("finished"):
            return cls(epoch=epoch + 1, digest=digest, is_resumed=True)
        if "first_step" not in state:
            done = _steps_done(state, topology)
            return cls(
                epoch=epoch,
                start_position=int(state["position"]),
                position=int(state["position"]),
                first_step=done,
                first_turn=done,
                digest=digest,
                is_resumed=True,
            )
        _refuse_another_topology(state, topology)
        return cls(
            epoch=epoch,
            start_position=_number(state, "start_position"),
            position=int(state["position"]),
            first_step=_number(state, "first_step"),
            first_turn=_number(state, "first_turn"),
            digest=digest,
            is_resumed=True,
        )

    def at_epoch(self, epoch: int) -> "Resume":
        """The beginning of another epoch of the same run."""
        return replace(self, epoch=epoch, start_position=0, position=0, first_step=0, first_turn=0)


def is_loader_state(state: Mapping[str, Any]) -> bool:
    """Whether a state is a StatefulDataLoader's, with or without workers."""
    return "_snapshot" in state or "_num_yielded" in state


def furthest_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a cursor of the last batch that a StatefulDataLoader had handed out.

    Each worker's state knows that worker's last batch alone. Batches are handed out in the order of their steps, so the
    last of all is that of the worker which is furthest.

    Raises:
        ValueError: the loader's dataset is no PackedDataset.
    """
    if "_snapshot" in state:
        of_workers = [worker["dataset_state"] for worker in state["_snapshot"]["_worker_snapshots"].values()]
        num_since, is_finished = state["_steps_since_snapshot"], state["_iterator_finished"]
    else:
        of_workers, num_since, is_finished = [state["dataset_state"]], 0, False
    if not all(isinstance(each, Mapping) and "first_step" in each for each in of_workers):
        raise ValueError("this is the state of a StatefulDataLoader over something else than a PackedDataset")
    last = max(of_workers, key=_progress)
    cursor = {name: last[name] for name in ("digest", "seed", "epoch", "position")}
    if last.get("finished") or is_finished:
        return cursor | {"finished": True}
    if num_since == 0:
        return cursor | {
            name: last[name] for name in ("steps_into_optimizer_step", "optimizer_step_shape") if name in last
        }
    if last["position"] < 0:  # of mode "independent": left to `_steps_done` to refuse
        return cursor
    if isinstance(last["bins_per_step"], str):
        raise ValueError(
            f"this loader's state was saved {num_since} batches after what its workers recorded, under batch_size "
            f"{last['bins_per_step']!r}, by which they cannot be counted; resume from a batch's 'cursor', or save "
            "with snapshot_every_n_steps=1"
        )
    optimizer_steps, steps = divmod(last["first_step"] + num_since, last["steps_per_optimizer_step"])
    cursor["position"] = (
        last["start_position"] + optimizer_steps * last["steps_per_optimizer_step"] * last["bins_per_step"]
    )
    return cursor | ({"steps_into_optimizer_step": steps, "optimizer_step_shape": last["shape"]} if steps else {})


def _progress(state: Mapping[str, Any]) -> tuple[int, bool, int, int]:
    return state["epoch"], bool(state.get("finished")), state["start_position"], state["first_step"]


def _checked(state: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Returns a cursor or a worker's state, whose digest, epoch, position and seed are in order."""
    if not isinstance(state, Mapping):
        raise ValueError(f"not a cursor: {type(state).__name__}; pass a batch's 'cursor' or a state_dict()")
    if is_loader_state(state):
        state = furthest_state(state)
    missing = [name for name in REQUIRED_FIELDS if name not in state]
    if missing:
        raise ValueError(f"not a cursor: {', '.join(missing)} missing; pass a batch's 'cursor' or a state_dict()")
    if state.get("version", STATE_VERSION) != STATE_VERSION:
        raise ValueError(f"state version {state['version']!r} is not known; resume from a batch's 'cursor' instead")
    if state["seed"] != seed:
        raise ValueError(
            f"the cursor was saved under seed {state['seed']}, this dataset has seed {seed}; make it with the "
            "cursor's seed to go on"
        )
    _number(state, "epoch")
    _number(state, "position", NO_POSITION)
    if not isinstance(state["digest"], str):
        raise ValueError(
            f"the cursor's digest must be a string, got {state['digest']!r}; pass a batch's 'cursor' as it was"
        )
    return state


def _steps_done(state: Mapping[str, Any], topology: Topology) -> int:
    """Steps of a cursor's optimizer step that need not be repeated: 0 where they were made under another topology."""
    if state["position"] == NO_POSITION:
        raise ValueError(
            "this cursor is of mode 'independent' with several workers, and cannot say where each of them is; resume "
            "with a StatefulDataLoader's state, or train with one worker for each rank or with mode 'partition'"
        )
    done = _number(state, "steps_into_optimizer_step")
    shape = optimizer_step_shape(topology)
    if done and state.get("optimizer_step_shape") != shape:
        _LOG.warning(
            "the cursor is within an optimizer step of %s, this run has %s: the optimizer step begins again, and %d of "
            "its steps come twice",
            state.get("optimizer_step_shape", "another topology"),
            shape,
            done,
        )
        return 0
    if done >= topology.steps_per_optimizer_step > 1:
        raise ValueError(
            f"the cursor's steps_into_optimizer_step is {done}, and an optimizer step has "
            f"{topology.steps_per_optimizer_step} steps; pass a batch's 'cursor' as it was"
        )
    return done


def _refuse_another_topology(state: Mapping[str, Any], topology: Topology) -> None:
    """Refuses a worker's state that was saved under another topology."""
    then, now = state.get("shape"), optimizer_step_shape(topology)
    in_optimizer_steps = max(state.get("steps_per_optimizer_step", 1), topology.steps_per_optimizer_step) > 1
    bins_per_step = bins_per_step_of(topology)
    if state["bins_per_step"] != bins_per_step or (in_optimizer_steps and then != now):
        raise ValueError(
            f"this state was saved with {state['bins_per_step']} bins in a step ({then}), now there are "
            f"{bins_per_step} ({now}): under another world_size, batch_size or balance resume from a "
            "batch's 'cursor' instead"
        )


def _number(state: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Returns a number of a cursor, 0 where it has none; a ValueError where it is out of range."""
    return checked_integer(f"the cursor's {name}", state.get(name, 0), least, _MOST)
