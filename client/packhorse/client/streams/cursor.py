"""Where training is, in a form that every checkpoint can hold: the cursor, and a dataloader worker's state around it.

Three forms can be loaded, and `Resume.from_state` reads all of them: a cursor (`Cursor`); a worker's state, which is a
cursor with the worker's own progress (`as_worker_state`); and the state of torchdata's StatefulDataLoader, which holds
a worker's state for each worker. Leaves what is loaded and when to `loading/_progress`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NotRequired, TypedDict

from packhorse.topology import StreamMode, Topology, checked_integer

_LOG = logging.getLogger(__name__)

_LARGEST_NUMBER = 2**63 - 1
"""The largest number that a cursor may hold."""

_REQUIRED = ("digest", "seed", "epoch", "position")
"""The fields that every cursor has."""

_WITHOUT_EFFECT = ("workers_per_rank", "start_position")
"""Fields of a Topology that a state need not repeat: workers only share the steps of a rank, and the first step begins
at the state's own position."""

NO_POSITION = -1
"""The position of a cursor that cannot be resumed: several workers of an INDEPENDENT dataset were at different ones."""

Facts = dict[str, int | str]
"""Fields of a Topology by name, as `topology_facts` returns them."""

State = dict[str, Any]
"""A cursor; or a worker's state, which also holds the topology, the number of workers, and `steps_ahead`: how many
steps after the cursor the worker's next step is. After the last step of an epoch it holds `finished`, which is True."""


class Cursor(TypedDict):
    """The state of the training data. The first four values are enough to resume under any topology.

    It is a plain dict, so that JSON and torch.load(weights_only=True) can read it.

    With a balance the position changes only after a whole optimizer step, because the bins of an optimizer step are
    exchanged between its steps. A cursor within an optimizer step also has the steps done: under the same topology
    training continues after them; under any other the optimizer step begins again.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, seed=1)
        >>> cursor = next(iter(dataset))["cursor"]
        >>> cursor["seed"], cursor["epoch"], cursor["position"]
        (1, 0, 1)
    """

    digest: str
    """Digest of the dataset and of the skipped positions."""
    seed: int
    """Seed of the run."""
    epoch: int
    """Epoch, 0-based."""
    position: int
    """Position to resume at; NO_POSITION if there is none."""
    steps_into_optimizer_step: NotRequired[int]
    """Steps consumed after the position, in an unfinished optimizer step."""
    topology: NotRequired[Facts]
    """Topology of these steps, as `topology_facts` returns it."""


def topology_facts(topology: Topology) -> Facts:
    """Returns the fields of a topology that decide which rank gets which bin at which step, without default values.

    Example:
        >>> facts = topology_facts(Topology(world_size=4, balance="micro-step", workers_per_rank=2))
        >>> facts, Topology(**facts).bins_per_step
        ({'world_size': 4, 'balance': 'micro-step'}, 4)
    """
    given = ((each.name, getattr(topology, each.name)) for each in fields(topology) if each.name not in _WITHOUT_EFFECT)
    default = Topology()
    return {
        name: value if isinstance(value, int) else str(value)
        for name, value in given
        if value != getattr(default, name)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where an iteration over a dataset begins: at the start of an epoch, or where a state was saved."""

    epoch: int
    """Epoch, 0-based."""
    position: int = 0
    """Position of step 0; an optimizer step begins there."""
    first_step: int = 0
    """First step that is not done, counted from `position`."""
    digest: str = ""
    """Digest that the dataset must have; empty for any."""
    is_resumed: bool = False
    """Whether a state was loaded, so that earlier epochs are done."""
    steps_ahead: int | None = None
    """A resumed worker's next step, counted from first_step; None if the worker begins with its own number."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, seed: int, topology: Topology) -> "Resume":
        """Reads a cursor, a worker's state (`PackedDataset.state_dict`), or a whole StatefulDataLoader's state.

        A cursor and a whole StatefulDataLoader's state resume under any topology; a worker's state fits only the
        topology that it was saved under.

        Raises:
            ValueError: fields are missing or out of range, the seed differs, a worker's state was saved under another
                topology, or the cursor is of several workers of mode `independent`.
        """
        state = without_loader(state)
        _check_cursor(state, seed)
        epoch, position = _number(state, "epoch"), _number(state, "position", least=NO_POSITION)
        if state.get("finished"):
            return cls(epoch=epoch + 1, digest=state["digest"], is_resumed=True)
        if position == NO_POSITION:
            raise ValueError(
                "this cursor is of mode 'independent' with several workers, and cannot say where each of them is; "
                "resume with a StatefulDataLoader's state, or train with one worker for each rank or with mode "
                "'partition'"
            )
        steps_ahead = None
        if is_of_worker(state):
            _refuse_another_topology(state, topology)
            steps_ahead = _number(state, "steps_ahead")
        return cls(
            epoch=epoch,
            position=position,
            first_step=_steps_done(state, topology),
            digest=state["digest"],
            is_resumed=True,
            steps_ahead=steps_ahead,
        )

    def at_epoch(self, epoch: int) -> "Resume":
        """Returns the beginning of another epoch of the same run."""
        return replace(self, epoch=epoch, position=0, first_step=0, steps_ahead=None)

    def cursor_at(self, position: int, steps_into: int, *, digest: str, seed: int, facts: Facts) -> State:
        """Returns the cursor after `steps_into` steps of the optimizer step that begins at a position of this epoch."""
        cursor = {"digest": digest, "seed": seed, "epoch": self.epoch, "position": position}
        return cursor | ({"steps_into_optimizer_step": steps_into, "topology": facts} if steps_into else {})


def as_cursor(state: Mapping[str, Any]) -> State:
    """Returns the cursor in a state. It has a topology only within an optimizer step."""
    names = Cursor.__annotations__ if state.get("steps_into_optimizer_step") else _REQUIRED
    return {name: state[name] for name in names}


def as_worker_state(cursor: State, steps_ahead: int, num_workers: int, facts: Facts) -> State:
    """Returns a worker's state: the cursor after its last batch, and its next step, counted from the cursor's."""
    return cursor | {"topology": facts, "steps_ahead": steps_ahead, "num_workers": num_workers}


def is_of_worker(state: Mapping[str, Any]) -> bool:
    """Whether a state is a worker's state, not a cursor."""
    return "steps_ahead" in state


def without_loader(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a whole StatefulDataLoader's state as a cursor, and any other state as it is.

    Raises:
        ValueError: it is no state, or the loader's is of another dataset.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"not a cursor: {type(state).__name__}; pass a batch's 'cursor' or a state_dict()")
    return _cursor_of_loader(state) if _is_of_loader(state) else state


def _is_of_loader(state: Mapping[str, Any]) -> bool:
    """Whether a state is a StatefulDataLoader's: the first key is there with workers, the second without."""
    return "_snapshot" in state or "_num_yielded" in state


def _cursor_of_loader(state: Mapping[str, Any]) -> State:
    """Returns the cursor after the last batch that a StatefulDataLoader returned, from the loader's state.

    Each worker's state knows only that worker's last batch. Batches are returned in the order of their steps, so the
    last batch of all is the one of the worker that is furthest. If the loader saves its workers' states only every few
    batches, the batches since then are added.
    """
    if "_snapshot" in state:  # it has workers
        of_workers = [worker["dataset_state"] for worker in state["_snapshot"]["_worker_snapshots"].values()]
        num_batches_since, is_finished = state["_steps_since_snapshot"], state["_iterator_finished"]
    else:  # the dataset's own state is of the last batch, and says whether the epoch is finished
        of_workers, num_batches_since, is_finished = [state["dataset_state"]], 0, False
    if not all(isinstance(each, Mapping) and is_of_worker(each) for each in of_workers):
        raise ValueError("this is the state of a StatefulDataLoader over something else than a PackedDataset")
    last = max(of_workers, key=_how_far)
    cursor = as_cursor(last)
    if last.get("finished") or is_finished:
        return cursor | {"finished": True}
    topology = Topology(**last["topology"])
    if topology.mode is StreamMode.INDEPENDENT and len(of_workers) > 1:
        return cursor | {"position": NO_POSITION}  # each worker has its own; `Resume.from_state` refuses it
    if num_batches_since == 0:
        return cursor
    if topology.batch_schedule is not None:
        raise ValueError(
            f"this loader's state was saved {num_batches_since} batches after what its workers recorded, under "
            f"batch_schedule '{topology.batch_schedule}', by which they cannot be counted; resume from a batch's "
            "'cursor', or save with snapshot_every_n_steps=1"
        )
    done = last.get("steps_into_optimizer_step", 0) + num_batches_since
    optimizer_steps, steps = divmod(done, topology.steps_per_optimizer_step)
    position = last["position"] + optimizer_steps * topology.bins_per_optimizer_step
    return cursor | {"position": position, "steps_into_optimizer_step": steps, "topology": last["topology"]}


def _how_far(state: Mapping[str, Any]) -> tuple[int, bool, int, int]:
    """Returns a key that sorts workers' states by progress."""
    return state["epoch"], bool(state.get("finished")), state["position"], state.get("steps_into_optimizer_step", 0)


def _check_cursor(state: Mapping[str, Any], seed: int) -> None:
    """Raises a ValueError if a required field is missing, the seed differs, or the digest is no string."""
    missing = [name for name in _REQUIRED if name not in state]
    if missing:
        raise ValueError(f"not a cursor: {', '.join(missing)} missing; {_way_to_cursor(state)}")
    if state["seed"] != seed:
        raise ValueError(
            f"the cursor was saved under seed {state['seed']}, this dataset has seed {seed}; make it with the "
            "cursor's seed to go on"
        )
    if not isinstance(state["digest"], str):
        raise ValueError(
            f"the cursor's digest must be a string, got {state['digest']!r}; pass a batch's 'cursor' unchanged"
        )


def _way_to_cursor(state: Mapping[str, Any]) -> str:
    """Returns advice for a dict that is not a cursor: where in it a cursor is, if it is e.g. a whole checkpoint."""
    for name, value in state.items():
        if isinstance(value, Mapping) and (all(each in value for each in _REQUIRED) or _is_of_loader(value)):
            return f"the one in this {type(state).__name__} is under {name!r}: load_state_dict(state[{name!r}])"
    return "pass a batch's 'cursor' or a state_dict()"


def _steps_done(state: Mapping[str, Any], topology: Topology) -> int:
    """Returns how many steps of a cursor's optimizer step are done; 0, to begin it again, under another topology.

    Raises:
        ValueError: as many steps are done as an optimizer step has, or more.
    """
    done = _number(state, "steps_into_optimizer_step")
    if done == 0:
        return 0
    saved_facts, facts = state.get("topology"), topology_facts(topology)
    if saved_facts != facts:
        _LOG.warning(
            "the cursor is within an optimizer step of %s, this run has %s: the optimizer step begins again, and %d of "
            "its steps come twice",
            "another topology" if saved_facts is None else saved_facts,
            facts,
            done,
        )
        return 0
    if done >= topology.steps_per_optimizer_step:
        raise ValueError(
            f"the cursor's steps_into_optimizer_step is {done}, and an optimizer step has "
            f"{topology.steps_per_optimizer_step} steps; pass a batch's 'cursor' unchanged"
        )
    return done


def _refuse_another_topology(state: Mapping[str, Any], topology: Topology) -> None:
    """Raises a ValueError if a worker's state was saved under a topology whose steps hold other bins.

    If every optimizer step is one step, only the number of bins in a step matters: no balance exchanges them.
    """
    saved = Topology(**state["topology"])
    saved_facts, facts = topology_facts(saved), topology_facts(topology)
    saved_bins, bins = (each.batch_schedule or each.bins_per_step for each in (saved, topology))
    has_long_optimizer_steps = max(saved.steps_per_optimizer_step, topology.steps_per_optimizer_step) > 1
    if saved_bins != bins or (has_long_optimizer_steps and saved_facts != facts):
        raise ValueError(
            f"this state was saved with {saved_bins} bins in a step ({saved_facts}), now there are {bins} "
            f"({facts}): under another world_size, batch_size or balance resume from a batch's 'cursor' "
            "instead"
        )


def _number(state: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Returns an integer of a state, 0 if it is missing; a ValueError if it is out of range."""
    return checked_integer(f"the cursor's {name}", state.get(name, 0), least, _LARGEST_NUMBER)
