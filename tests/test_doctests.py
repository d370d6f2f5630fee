"""Every example in a docstring does what it says, and every public function and the client's public classes have one.

Examples run in a folder of their own, which holds what README's examples speak of: `corpus.idx`, four sequences of 5,
3, 3 and 5 tokens; `datasets/corpus`, prepared from it with max_seq_len 8; `datasets/corpus-of-seqpack`, the same in
seqpack's layout; `mds`, the shards of `tests/data`.
"""

import doctest
import pkgutil
import shutil
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from tests.flat_words import prepare
from tests.shelf_packages import SHELF

from packhorse.client import Client
from packhorse.formats import MegatronWriter

DATA = Path(__file__).parent / "data"
CORE = ("topology", "types", "wire", "shelf", "jobs", "packing", "epoch", "dataset", "prepare", "formats", "client")


def is_there(name: str) -> bool:
    """Whether this tree has a package of the shelf, and those of the shelf that it imports."""
    try:
        import_module(f"packhorse.{name}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("packhorse."):
            raise
        return False
    return True


PACKAGES = (*CORE, *(name for name in SHELF if name != "demo" and is_there(name)))  # the demo exports nothing
PACKAGES_OF_CLASSES = tuple(
    name
    for name in ("formats", "client", "sft", "losses", "parallel", "pictures", "proof", "rollouts", "trainers")
    if name in PACKAGES
)
OF_CONSUMERS = {"packhorse.rollouts.transfer_queue": "transfer_queue"}
"""Modules that import the package which they are for."""

WITH_SHELF = {"packhorse.shelf", "packhorse.client.batches.media"}
"""Modules of the core whose examples show the shelf."""

WITHOUT_EXAMPLE = {
    "packhorse.rollouts.OpenInstructPacks": "the keys of a dict; `to_open_instruct` is the example",
    "packhorse.parallel.ContextBatch": "what `context_batch` returns, which is the example",
    "packhorse.pictures.MarkedRange": "a part of `MarkedSequence`, which is the example",
    "packhorse.client.Client.close": "a `with` statement calls it, as in the examples of the other methods",
    "packhorse.dataset.seal": "wants a plan, its arrays and every fact about them; `prepare` is the example",
}


def modules() -> Iterator[str]:
    for name in PACKAGES:
        package = import_module(f"packhorse.{name}")
        yield package.__name__
        yield from (module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))


def public_functions() -> Iterator[tuple[str, FunctionType]]:
    for name in PACKAGES:
        package = import_module(f"packhorse.{name}")
        for public in package.__all__:
            function = unwrap(getattr(package, public))
            if isinstance(function, FunctionType):
                yield f"packhorse.{name}.{public}", function


def public_classes() -> Iterator[tuple[str, type]]:
    """Neither exceptions nor enums, which show in the examples of what raises and takes them."""
    for name in PACKAGES_OF_CLASSES:
        package = import_module(f"packhorse.{name}")
        for public in package.__all__:
            found = getattr(package, public)
            if isinstance(found, type) and not issubclass(found, Exception | Enum):
                yield f"packhorse.{name}.{public}", found


def methods_of_client() -> Iterator[tuple[str, FunctionType]]:
    for name, method in vars(Client).items():
        if isinstance(method, FunctionType) and not name.startswith("_"):
            yield f"packhorse.client.Client.{name}", method


def marked(name: str, *others: Any) -> Any:
    """Parameters of a test, which is none of the core's if it needs the shelf."""
    wants_shelf = name.split(".")[1] in SHELF or name in WITH_SHELF
    return pytest.param(name, *others, marks=pytest.mark.shelf if wants_shelf else ())


@pytest.fixture(scope="module")
def examples_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    with MegatronWriter(folder / "corpus", vocab_size=100) as writer:
        for length in (5, 3, 3, 5):
            writer.append(np.arange(length))
    for name, layout in (("corpus", "packhorse"), ("corpus-of-seqpack", "seqpack")):
        output = folder / "datasets" / name
        prepare(folder / "corpus.idx", max_seq_len=8, output=output, format=layout, progress=False)
    shutil.copytree(DATA / "mds", folder / "mds")
    return folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(map(marked, modules())))
def test_examples_do_what_they_say(name: str, examples_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in OF_CONSUMERS:
        pytest.importorskip(OF_CONSUMERS[name], exc_type=ImportError)
    monkeypatch.chdir(examples_folder)
    assert doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize(
    ("name", "found"),
    [marked(*each) for each in (*public_functions(), *methods_of_client(), *public_classes())],
)
def test_what_is_public_has_an_example(name: str, found: FunctionType | type) -> None:
    examples = doctest.DocTestParser().get_examples(found.__doc__ or "")
    assert bool(examples) != (name in WITHOUT_EXAMPLE)
