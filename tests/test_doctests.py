"""Every example in a docstring does what it says, and every public function has one.

Examples run in a folder of their own, which holds what README's examples speak of: `corpus.idx`, four sequences of 5,
3, 3 and 5 tokens; `datasets/corpus`, prepared from it with max_seq_len 8; `datasets/corpus-of-seqpack`, the same in
seqpack's layout.
"""

import doctest
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

from packhorse.formats import MegatronWriter
from packhorse.prepare import prepare

PACKAGES = ("topology", "wire", "jobs", "packing", "epoch", "dataset", "prepare", "tokenize", "formats", "sft")
WITHOUT_EXAMPLE = {
    "packhorse.dataset.seal": "wants a plan, its arrays and every fact about them; `prepare` is the example",
}


def modules() -> Iterator[str]:
    for name in PACKAGES:
        package = import_module(f"packhorse.{name}")
        yield package.__name__
        yield from (module.name for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."))


def public_functions() -> Iterator[tuple[str, FunctionType]]:
    for name in PACKAGES:
        package = import_module(f"packhorse.{name}")
        for public in package.__all__:
            function = unwrap(getattr(package, public))
            if isinstance(function, FunctionType):
                yield f"packhorse.{name}.{public}", function


@pytest.fixture(scope="module")
def examples_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    with MegatronWriter(folder / "corpus", vocab_size=100) as writer:
        for length in (5, 3, 3, 5):
            writer.append(np.arange(length))
    for name, layout in (("corpus", "packhorse"), ("corpus-of-seqpack", "seqpack")):
        output = folder / "datasets" / name
        prepare(folder / "corpus.idx", max_seq_len=8, output=output, format=layout, progress=False)
    return folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(modules()))
def test_examples_do_what_they_say(name: str, examples_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(examples_folder)
    assert doctest.testmod(import_module(name)).failed == 0


@pytest.mark.parametrize(("name", "function"), list(public_functions()))
def test_every_public_function_has_an_example(name: str, function: FunctionType) -> None:
    has_example = bool(doctest.DocTestFinder(recurse=False).find(function)[0].examples)
    assert has_example != (name in WITHOUT_EXAMPLE)
