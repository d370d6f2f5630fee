"""One word for one thing: the public surface has no word that was given up for another.

Owns the list of words. Looks at the protocol, at what packages export, and at the reference pages, which hold
parameters, fields, command line flags, help texts, metrics and environment variables, and which
`docs/test_reference.py` keeps fresh; leaves inner names and prose elsewhere to reviews.
"""

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SURFACE = (
    REPOSITORY / "proto/packhorse/v1/packing.proto",
    *sorted((REPOSITORY / "client/guides").glob("reference-*.md")),
)
PACKAGES = tuple(
    f"packhorse.{name}"
    for name in (
        *("client", "formats", "sft", "topology", "types", "wire"),
        *("compiling", "dataset", "epoch", "jobs", "packing", "prepare", "tokenize"),
    )
)

WORDS = {
    "places?|placed|placement": "room of a bin, slot, position, address, permit or location",
    "callers?|consumers?": "client or trainer",
    "readers?": "client or trainer",
    "stretch|stretches": "range of tokens, positions or rows; Stretch is the topology's",
    "spans?": "range of tokens or rows",
    "datasets?_(ids?|names|weights|metrics)|per_dataset|defined_datasets|datasets?_of_sequences": "component",
    "batch_stages?": "phase of a batch schedule",
    "windows?_(sequences|steps|shape)|(steps|bins)_(per|into)_window": "optimizer step, or look-ahead",
    "runs?_(starts?|lengths?|labels?)": "extent of a layout",
    "pieces? of work": "time slice",
}
"""Word, a pattern of whole words in snake_case → what to say instead."""

ALLOWED = {
    "Stretch": "the topology's: steps of one size that follow each other",
    "stretches": "the same",
    "stretch_of": "the same",
    "stretch_number": "the same",
    "stretch_at": "the same",
    "by_stretch": "the same",
    "READERS": "of prepare: what reads files of one format, not whoever reads bins",
}
"""What the words are still right in → why."""


def snake_case(text: str) -> str:
    """PackLayout and dataset-ids as pack_layout and dataset_ids, so that one pattern finds names of every kind."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[a-z])-(?=[a-z])", "_", text).lower()


def exported(package: str) -> Iterator[str]:
    """Every exported name, then with a dot behind it each member, and in brackets each parameter."""
    module = import_module(package)
    for name in module.__all__:
        yield name
        value = getattr(module, name)
        members = {f".{member}": held for member, held in vars(value).items()} if isinstance(value, type) else {}
        for member, held in {"": value, **members}.items():
            if not member.startswith("._"):
                yield f"{name}{member}"
                if inspect.isroutine(held) or isinstance(held, type):
                    with suppress(ValueError, TypeError):  # no signature
                        yield from (f"{name}{member}({each})" for each in inspect.signature(held).parameters)


def given_up(line: str) -> list[str]:
    """What a line says that it should not."""
    for allowed in sorted(ALLOWED, key=len, reverse=True):
        line = re.sub(rf"\b{re.escape(allowed)}\b", "", line)
    line = snake_case(line)
    return [f"{found[0]}: say {other}" for word, other in WORDS.items() for found in [find(word, line)] if found]


def find(word: str, line: str) -> re.Match[str] | None:
    return re.search(rf"(?<![a-z0-9])({word})(?![a-z0-9])", line)


@pytest.mark.parametrize("path", SURFACE, ids=lambda path: path.name)
def test_the_public_surface_says_one_word_for_one_thing(path: Path) -> None:
    found = [
        f"{path.name}:{number}: {flaw}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for flaw in given_up(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_exports_say_one_word_for_one_thing(package: str) -> None:
    assert [f"{name}: {flaw}" for name in exported(package) for flaw in given_up(name)] == []


def test_members_and_parameters_are_looked_at() -> None:
    names = set(exported("packhorse.topology"))
    assert {"Topology", "Topology(world_size)", "Topology.num_steps", "Topology.num_steps(num_bins)"} <= names


@pytest.mark.parametrize(
    "line",
    [
        "optional StreamPlace place = 6;",
        "| `every_place` |",
        "class DatasetMetrics: ...",
        "bytes defined_datasets = 11;",
        "| `--dataset-weights` |",
        "int32 window_sequences = 2;",
        "repeated BatchStage batch_schedule = 10;",
        "// How long it waited for the consumer.",
        "| `padding_spans` |",
    ],
)
def test_what_was_given_up_is_found(line: str) -> None:
    assert given_up(line)


@pytest.mark.parametrize(
    "line", ["| `--replace` |", "| `dataset` |", "sequences replaced", "| `stretch_of(step)` |", "runs"]
)
def test_other_words_are_left_alone(line: str) -> None:
    assert not given_up(line)


def test_every_exception_is_still_needed() -> None:
    surface = "\n".join([*(path.read_text() for path in SURFACE), *chain.from_iterable(map(exported, PACKAGES))])
    assert [name for name in ALLOWED if not re.search(rf"\b{re.escape(name)}\b", surface)] == []


ABOUT_SHARED_BINS = (
    "proto/packhorse/topology/context.py",
    "server/packhorse/packing/context.py",
    "server/packhorse/analysis/context_plans.py",
    "client/packhorse/parallel/context.py",
    "client/packhorse/parallel/counts.py",
    "client/packhorse/parallel/row_layouts.py",
    "client/packhorse/parallel/process_groups.py",
    "client/guides/dynamic-context-parallelism.md",
)


@pytest.mark.parametrize("name", ABOUT_SHARED_BINS)
def test_ranks_that_share_bins_are_a_context_parallel_group(name):
    """A group is of sequences (`Grouping`); ranks make a context-parallel group, and torch's a process group."""
    text = " ".join((REPOSITORY / name).read_text(encoding="utf-8").split())
    assert re.findall(r"(?<!\w)(?<!context-parallel )(?<!process )groups?\b(?!=)", text) == []
