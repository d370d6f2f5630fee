"""The client: bins from a server, or from a folder, as blocks, tensors and masks.

    from packhorse.client import create_packed_dataloader

    loader = create_packed_dataloader("127.0.0.1:50051", "corpus", "corpus.idx", batch_size=8, seed=1)
    for epoch in loader.epochs(2):
        for batch in loader:
            ...

Most trainers need only the names of this package. The rest is in its subpackages:

packhorse.client.batches    tensors of a batch, layouts, separators
packhorse.client.errors     every exception, drawn as a tree
packhorse.client.masks      attention masks and offsets for every kernel
packhorse.client.presets    keys and label shifts of training stacks
packhorse.client.sources    token sources: files, object stores, mixtures
packhorse.client.streams    what a stream or an answer holds

These packages use it:

packhorse.export            an epoch's plan as files
packhorse.losses            weights of tokens, metrics by component, sums by sequence
packhorse.parallel          context parallelism
packhorse.pictures          bins and batches drawn, a step explained
packhorse.proof             audits, the doctor, health, what servers do now
packhorse.rollouts          rollouts and preference pairs, packed on demand
packhorse.trainers          Hugging Face, TRL, Lightning, Megatron, torchdata
packhorse.vision            images of vision-language models

A name is loaded when it is first asked for, so connecting and streaming need no torch. The names are listed in
`__init__.pyi`. Log lines go to the logger "packhorse", which is quiet until it has a handler.
"""

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

try:
    __version__ = version("packhorse")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

logging.getLogger("packhorse").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Loads a name; if torch is missing, the error says which extra installs it."""
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"packhorse.client.{name} needs torch; install it with: pip install 'packhorse[client]'"
        ) from None
