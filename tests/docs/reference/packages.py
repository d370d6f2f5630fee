"""The pages of functions and classes, the client's and the library's, from signatures and docstrings."""

import inspect
from importlib import import_module
from typing import get_origin

from reference.markdown import cell, page
from reference.names import described

ROOMS = ("batches", "masks", "presets", "sources", "streams")
SHELF = ("export", "losses", "parallel", "pictures", "proof", "rollouts", "trainers", "vision")
LIBRARY = ("prepare", "packing", "epoch", "topology", "formats", "tokenize", "sft")
STACKS = {
    "transformers": ("PackedTrainer", "PackedTrainerMixin", "cursor_of_checkpoint"),
    "trl": ("PackedSFTTrainer",),
    "torchdata": ("PackedNode", "PackedStatefulDataLoader"),
}


def page_of(title: str, first: str, packages: dict[str, tuple[str, ...]]) -> str:
    parts = []
    for package, names in packages.items():
        module = import_module(package)
        parts.append(f"## {package}\n")
        if len(packages) > 1:
            parts.append(cell((module.__doc__ or "").split("\n\n")[0]) + "\n")
        for name in sorted(names, key=str.lower):
            found = getattr(module, name)
            if not (isinstance(found, type) or inspect.isroutine(found)) or get_origin(found):
                continue  # a number, or the name of a type
            parts += [f"### {name}\n", described(f"{package}.{name}", found)]
    return page(title, first, *parts)


def client_page() -> str:
    import packhorse.client

    packages = {"packhorse.client": tuple(packhorse.client.__all__)}
    for room in ROOMS:
        names = set(import_module(f"packhorse.client.{room}").__all__) - set(packhorse.client.__all__)
        packages[f"packhorse.client.{room}"] = tuple(sorted(names))
    packages |= {f"packhorse.{name}": tuple(import_module(f"packhorse.{name}").__all__) for name in SHELF}
    packages |= {f"packhorse.trainers.{name}": names for name, names in STACKS.items()}
    first = (
        "Names and parameters of what a trainer uses. `help()` of each shows an example as well. Names for machines "
        "that prepare and serve are in [the library's reference](reference-library.md)."
    )
    return page_of("The client's functions and classes", first, packages)


def library_page() -> str:
    packages = {f"packhorse.{name}": tuple(import_module(f"packhorse.{name}").__all__) for name in LIBRARY}
    first = (
        "Names and parameters of what plans, prepares and tokenizes in Python. A trainer needs "
        "[the client's reference](reference-client.md) instead."
    )
    return page_of("The library's functions and classes", first, packages)
