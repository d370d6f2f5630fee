"""What a StatefulDataLoader of torchdata saves, read as a cursor.

Owns the look into its workers' states; leaves what a dataset's own state means to `cursor`.
"""

from collections.abc import Mapping
from typing import Any


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
    if last["position"] < 0:  # of mode "independent": as it is, for whoever reads it to refuse
        return cursor
    if isinstance(last["bins_per_step"], str):
        raise ValueError(
            f"this loader's state was saved {num_since} batches behind what its workers told of, under batch_size "
            f"{last['bins_per_step']!r}, by which they cannot be counted; resume from a batch's 'cursor', or save "
            "with snapshot_every_n_steps=1"
        )
    windows, steps = divmod(last["first_step"] + num_since, last["steps_per_optimizer_step"])
    cursor["position"] = last["start_position"] + windows * last["steps_per_optimizer_step"] * last["bins_per_step"]
    return cursor | ({"steps_into_optimizer_step": steps, "optimizer_step_shape": last["shape"]} if steps else {})


def _progress(state: Mapping[str, Any]) -> tuple[int, bool, int, int]:
    return state["epoch"], bool(state.get("finished")), state["start_position"], state["first_step"]
