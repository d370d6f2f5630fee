"""Hints for an unknown keyword argument: `with_hints` adds to the TypeError what to give instead.

Owns the table of these hints. Leaves the options themselves to `client.options` and `presets/batch_format`.
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_HINTS = {
    "shuffle": "an epoch is shuffled already, by seed=, and set_epoch shuffles the next one otherwise",
    "sampler": "the service chooses the bins; for a sampler of your own take PackedBins in a DataLoader",
    "batch_sampler": "the service chooses the bins; for a sampler of your own take PackedBins in a DataLoader",
    "drop_last": "whether the last, partial step is left out says topology=Topology(batch_size=…, remainder='drop')",
    "pin_memory": "batches are pinned and copied to device= ahead of the step",
    "collate_fn": "batches come whole; another form of them is preset= or batch=BatchFormat(…)",
    "prefetch_factor": "give loader=LoaderOptions(prefetch_factor=…)",
    "persistent_workers": "workers always live on from epoch to epoch",
    "worker_init_fn": "take a PackedDataset in a DataLoader of your own",
    "generator": "the order comes from seed=",
    "multiprocessing_context": "give loader=LoaderOptions(multiprocessing_context=…)",
    "timeout": "give target=Server(target, timeout_seconds=…)",
    "epoch": "give dataset=Run(dataset, epoch=…), or call set_epoch",
    "rank": "give loader=LoaderOptions(rank=(rank, world_size))",
    "world_size": "give loader=LoaderOptions(rank=(rank, world_size))",
    "loss_mask": "give batch=BatchFormat(loss_mask=…); the mask that lies beside a token file is used without it",
    "shift_labels": "give batch=BatchFormat(shift_labels=…), or a preset that shifts them",
    "flatten": "give batch=BatchFormat(flatten=True), or preset='padding-free'",
    "max_seq_len": "`packhorse prepare` has set it",
    "skip": "give dataset=Run(dataset, skip=…)",
}
"""An argument that users of PyTorch try, or one that belongs in an options object → the hint."""


def with_hints(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Wraps a function: for a keyword argument that it does not have, its TypeError says what to give instead.

    The hint is the table's; else the function's argument with the most similar name; else all its arguments.
    """
    known = signature(function).parameters

    @wraps(function)
    def call(*args: _Arguments.args, **words: _Arguments.kwargs) -> _Result:
        """Calls the function, after checking the names of the keyword arguments."""
        for word in words:
            if word not in known:
                hint = f"it has {', '.join(name for name in known if name != 'self')}"
                if near := get_close_matches(word, known, n=1):
                    hint = f"did you mean {near[0]}=?"
                callee = function.__qualname__.removesuffix(".__init__")  # a class is named, not its constructor
                raise TypeError(f"{callee} got an unexpected keyword argument {word!r}: {_HINTS.get(word, hint)}")
        return function(*args, **words)

    return call
