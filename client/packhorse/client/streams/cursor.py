"""Where training is, in a form that every checkpoint can hold: the cursor, and a dataloader worker's state around it.

Owns their fields, and writing and reading them. Leaves who holds them to `loading/_progress`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NotRequired, TypedDict

from packhorse.topology import StreamMode, Topology, checked_integer

_LOG = logging.getLogger(__name__)

_MOST = 2**63 - 1

_REQUIRED = ("digest", "seed", "epoch", "position")

_OF_PROCESS = ("workers_per_rank", "start_position")
"""Fields of a Topology that say nothing about which rank gets which bin."""

NO_POSITION = -1
"""A cursor's position where several workers of an INDEPENDENT dataset are each at another."""

Facts = dict[str, int | str]
"""Fields of a Topology, as `topology_facts` returns them."""

State = dict[str, Any]
"""A cursor; or a worker's state, which also holds its topology, its number of workers, and `steps_ahead` to its next
step."""


class Cursor(TypedDict):
    """The state of the training data. The first four values are enough to resume under any topology.

    A plain dict, so that JSON and torch.load(weights_only=True) take it.

    With a balance the position moves on at optimizer steps, because the bins of one are exchanged. Within one, the
    same topology continues after `steps_into_optimizer_step`; any other begins the optimizer step again.

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
    """The position to resume at; NO_POSITION if there is none."""
    steps_into_optimizer_step: NotRequired[int]
    """Steps consumed after the position, in an unfinished optimizer step."""
    topology: NotRequired[Facts]
    """The topology of these steps, as `topology_facts` returns it."""


def topology_facts(topology: Topology) -> Facts:
    """Returns what decides which rank gets which bin at which step: the fields that differ from Topology's defaults.

    Example:
        >>> facts = topology_facts(Topology(world_size=4, balance="micro-step", workers_per_rank=2))
        >>> facts, Topology(**facts).bins_per_step
        ({'world_size': 4, 'balance': 'micro-step'}, 4)
    """
    given = ((each.name, getattr(topology, each.name)) for each in fields(topology) if each.name not in _OF_PROCESS)
    plain = Topology()
    return {
        name: value if isinstance(value, int) else str(value) for name, value in given if value != getattr(plain, name)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where an iteration begins."""

    epoch: int
    """0-based."""
    position: int = 0
    """Where step 0 is counted from; an optimizer step begins there."""
    first_step: int = 0
    """Steps below it are done."""
    digest: str = ""
    """Digest that the dataset must have; empty for any."""
    is_resumed: bool = False
    """Whether a cursor was loaded: its run's earlier epochs are done."""
    steps_ahead: int | None = None
    """How many steps after first_step a worker's next one is; None for the worker's own number."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, seed: int, topology: Topology) -> "Resume":
        """Reads a cursor, a worker's state (`PackedDataset.state_dict`), or a whole StatefulDataLoader's state.

        A cursor and a whole StatefulDataLoader's state resume under any topology; a worker's state fits only the
        topology that it was saved under.

        Raises:
            ValueError: fields are missing, the seed is another, or a worker's state meets another topology.
        """
        state = _checked(state, seed)
        if state.get("finished"):
            return cls(epoch=state["epoch"] + 1, digest=state["digest"], is_resumed=True)
        steps_ahead = None
        if is_of_worker(state):
            _refuse_another_topology(state, topology)
            steps_ahead = _number(state, "steps_ahead")
        return cls(
            epoch=state["epoch"],
            position=int(state["position"]),
            first_step=_steps_done(state, topology),
            digest=state["digest"],
            is_resumed=True,
            steps_ahead=steps_ahead,
        )

    def at_epoch(self, epoch: int) -> "Resume":
        """The beginning of another epoch of the same run."""
        return replace(self, epoch=epoch, position=0, first_step=0, steps_ahead=None)

    def cursor_at(self, position: int, steps_into: int, *, digest: str, seed: int, facts: Facts) -> State:
        """Returns the cursor a number of steps into the optimizer step at a position of this epoch."""
        cursor = {"digest": digest, "seed": seed, "epoch": self.epoch, "position": position}
        return cursor | ({"steps_into_optimizer_step": steps_into, "topology": facts} if steps_into else {})


def as_cursor(state: Mapping[str, Any]) -> State:
    """Returns the cursor in a state: its topology counts within an optimizer step only."""
    names = Cursor.__annotations__ if state.get("steps_into_optimizer_step") else _REQUIRED
    return {name: state[name] for name in names}


def as_worker_state(cursor: State, steps_ahead: int, num_workers: int, facts: Facts) -> State:
    """Returns a worker's state: the cursor after its last batch, and which step comes next for it."""
    return cursor | {"topology": facts, "steps_ahead": steps_ahead, "num_workers": num_workers}


def is_of_worker(state: Mapping[str, Any]) -> bool:
    """Whether a state is a worker's, which knows its own next step."""
    return "steps_ahead" in state


def _cursor_of_loader(state: Mapping[str, Any]) -> State:
    """Returns a cursor of the last batch that a StatefulDataLoader had returned.

    Each worker's state knows only that worker's last batch. Batches are returned in the order of their steps, so the
    last of all is that of the worker which is furthest.
    """
    if "_snapshot" in state:
        of_workers = [worker["dataset_state"] for worker in state["_snapshot"]["_worker_snapshots"].values()]
        num_since, is_finished = state["_steps_since_snapshot"], state["_iterator_finished"]
    else:
        of_workers, num_since, is_finished = [state["dataset_state"]], 0, False
    if not all(isinstance(each, Mapping) and is_of_worker(each) for each in of_workers):
        raise ValueError("this is the state of a StatefulDataLoader over something else than a PackedDataset")
    last = max(of_workers, key=_how_far)
    cursor = as_cursor(last)
    if last.get("finished") or is_finished:
        return cursor | {"finished": True}
    topology = Topology(**last["topology"])
    if topology.mode is StreamMode.INDEPENDENT and len(of_workers) > 1:
        return cursor | {"position": NO_POSITION}  # left to `_steps_done` to refuse
    if num_since == 0:
        return cursor
    if topology.batch_schedule is not None:
        raise ValueError(
            f"this loader's state was saved {num_since} batches after what its workers recorded, under batch_schedule "
            f"'{topology.batch_schedule}', by which they cannot be counted; resume from a batch's 'cursor', or save "
            "with snapshot_every_n_steps=1"
        )
    done = last.get("steps_into_optimizer_step", 0) + num_since
    optimizer_steps, steps = divmod(done, topology.steps_per_optimizer_step)
    position = last["position"] + optimizer_steps * topology.bins_per_optimizer_step
    return cursor | {"position": position, "steps_into_optimizer_step": steps, "topology": last["topology"]}


def _how_far(state: Mapping[str, Any]) -> tuple[int, bool, int, int]:
    return state["epoch"], bool(state.get("finished")), state["position"], state.get("steps_into_optimizer_step", 0)


def _checked(state: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
    """Returns a cursor or a worker's state, whose digest, epoch, position and seed are in order."""
    if not isinstance(state, Mapping):
        raise ValueError(f"not a cursor: {type(state).__name__}; pass a batch's 'cursor' or a state_dict()")
    if "_snapshot" in state or "_num_yielded" in state:  # a StatefulDataLoader's, with or without workers
        state = _cursor_of_loader(state)
    missing = [name for name in _REQUIRED if name not in state]
    if missing:
        raise ValueError(f"not a cursor: {', '.join(missing)} missing; {_way_to_cursor(state)}")
    if state["seed"] != seed:
        raise ValueError(
            f"the cursor was saved under seed {state['seed']}, this dataset has seed {seed}; make it with the "
            "cursor's seed to go on"
        )
    _number(state, "epoch")
    _number(state, "position", NO_POSITION)
    if not isinstance(state["digest"], str):
        raise ValueError(
            f"the cursor's digest must be a string, got {state['digest']!r}; pass a batch's 'cursor' unchanged"
        )
    return state


def _way_to_cursor(state: Mapping[str, Any]) -> str:
    """Says where a cursor is in what was given instead, such as a whole checkpoint."""
    for name, value in state.items():
        if isinstance(value, Mapping) and (all(each in value for each in _REQUIRED) or "_snapshot" in value):
            return f"the one in this {type(state).__name__} is under {name!r}: load_state_dict(state[{name!r}])"
    return "pass a batch's 'cursor' or a state_dict()"


def _steps_done(state: Mapping[str, Any], topology: Topology) -> int:
    """Steps of a cursor's optimizer step that need not be repeated: 0 where they were made under another topology."""
    if state["position"] == NO_POSITION:
        raise ValueError(
            "this cursor is of mode 'independent' with several workers, and cannot say where each of them is; resume "
            "with a StatefulDataLoader's state, or train with one worker for each rank or with mode 'partition'"
        )
    done, then, now = _number(state, "steps_into_optimizer_step"), state.get("topology"), topology_facts(topology)
    if done and then != now:
        _LOG.warning(
            "the cursor is within an optimizer step of %s, this run has %s: the optimizer step begins again, and %d of "
            "its steps come twice",
            "another topology" if then is None else then,
            now,
            done,
        )
        return 0
    if done >= topology.steps_per_optimizer_step > 1:
        raise ValueError(
            f"the cursor's steps_into_optimizer_step is {done}, and an optimizer step has "
            f"{topology.steps_per_optimizer_step} steps; pass a batch's 'cursor' unchanged"
        )
    return done


def _refuse_another_topology(state: Mapping[str, Any], topology: Topology) -> None:
    then, now = Topology(**state["topology"]), topology
    in_optimizer_steps = max(then.steps_per_optimizer_step, now.steps_per_optimizer_step) > 1
    sizes = [each.batch_schedule or each.bins_per_step for each in (then, now)]
    if sizes[0] != sizes[1] or (in_optimizer_steps and topology_facts(then) != topology_facts(now)):
        raise ValueError(
            f"this state was saved with {sizes[0]} bins in a step ({topology_facts(then)}), now there are {sizes[1]} "
            f"({topology_facts(now)}): under another world_size, batch_size or balance resume from a batch's 'cursor' "
            "instead"
        )


def _number(state: Mapping[str, Any], name: str, least: int = 0) -> int:
    return checked_integer(f"the cursor's {name}", state.get(name, 0), least, _MOST)
