"""A module is private or public by its name alone: what begins with an underscore is used in its own folder only."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("storage", "jobs", "packing", "epoch", "dataset", "prepare", "reference_packers", "tokenize")
ROOMS = ("batches", "loading", "masks", "presets", "sources", "streams", "transport")
SHELF = ("export", "losses", "parallel", "pictures", "proof", "rollouts", "trainers", "vision")
REPOSITORY = Path(__file__).parents[1]
ROOTS = ("proto", "server", "client")
PUBLIC_ROOMS = tuple(room for room in ROOMS if room not in ("loading", "transport"))


DEEP = {
    ("losses", "batches.saved"): "groups are pickled as layouts are",
    ("losses", "masks.token_index"): "sums over sequences, which a token's index names on the device",
    ("losses", "masks.transfer"): "tensors of the layout go to the device as masks do",
    ("pictures", "api"): "the topology that stands for none",
    ("pictures", "batches.summary"): "a batch's picture begins with its summary",
    ("proof", "transport.access"): "the doctor walks each step of a connection by itself",
    ("proof", "transport.addresses"): "the doctor walks each step of a connection by itself",
    ("proof", "transport.credentials"): "the doctor walks each step of a connection by itself",
    ("proof", "transport.grpc_channels"): "the doctor walks each step of a connection by itself",
    ("proof", "transport.handshake"): "the doctor walks each step of a connection by itself",
    ("proof", "transport.methods"): "the doctor walks each step of a connection by itself",
    ("proof", "transport.grpc_errors"): "the doctor walks each step of a connection by itself",
    ("proof", "transport.replica"): "the largest message that a client accepts",
    ("rollouts", "transport.embedded"): "rollouts are packed in this process, or by a server",
    ("rollouts", "transport.requests"): "resources, as requests have them",
    ("trainers", "connecting"): "a target as users give it",
    ("trainers", "loading.folder"): "a prepared folder by itself, as users give it",
    ("trainers", "loading.peers"): "how ranks of Megatron get what the first reads",
    ("trainers", "loading.ranks"): "which ranks of Megatron read",
    ("trainers", "presets.megatron_alignment"): "the rule that Megatron's kernels demand",
    ("trainers", "streams.cursor"): "where a checkpoint of Megatron resumes",
    ("vision", "batches.row_format"): "the type of a function that loads images",
}
"""(package of the shelf, module of `packhorse.client`) → why it reaches deeper than public names."""


def dotted(path: Path) -> str:
    """`server/packhorse/epoch/bins.py` → `packhorse.epoch.bins`; an `__init__` keeps its name."""
    return ".".join(path.relative_to(REPOSITORY).with_suffix("").parts[1:])


@cache
def modules() -> dict[str, Path]:
    files = (path for root in ROOTS for path in (REPOSITORY / root / "packhorse").rglob("*.py"))
    return {dotted(path): path for path in files}


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=level):
                package = f"{folder(dotted(path))}." if level else ""
                yield from (f"{package}{module}.{alias.name}" for alias in names)


@cache
def users() -> dict[str, set[str]]:
    """Each module → the modules that import it or a name of it."""
    found: dict[str, set[str]] = {name: set() for name in modules()}
    for user, path in modules().items():
        stub = path.with_suffix(".pyi")  # what a package loads when it is first asked for
        for imported in (*imports_of(path), *(imports_of(stub) if path.stem == "__init__" and stub.exists() else ())):
            for name in (imported, imported.rpartition(".")[0]):
                if name in found:
                    found[name].add(user)
    return found


def folder(module: str) -> str:
    return module.rpartition(".")[0]


def is_private(module: str) -> bool:
    return module.rpartition(".")[2].startswith("_") and not module.endswith("__")


def test_a_private_module_is_used_in_its_own_folder_only() -> None:
    outside = {
        f"{user} imports {module}"
        for module, its_users in users().items()
        if is_private(module)
        for user in its_users
        if folder(user) != folder(module)
    }
    assert not outside


@pytest.mark.parametrize("name", [*PACKAGES, *(f"client.{room}" for room in ROOMS)])
def test_a_module_that_only_its_own_folder_uses_begins_with_an_underscore(name: str) -> None:
    inner = {
        module
        for module, its_users in users().items()
        if module.startswith(f"packhorse.{name}.") and not is_private(module) and not module.endswith("__")
        if its_users and all(folder(user) == folder(module) and not user.endswith("__init__") for user in its_users)
    }
    assert not inner


@pytest.mark.parametrize("name", [*PACKAGES, "client"])
def test_outsiders_import_the_package_and_not_its_modules(name: str) -> None:
    package = f"packhorse.{name}."
    exported = set(import_module(f"packhorse.{name}").__all__)
    if name == "client":
        for room in PUBLIC_ROOMS:
            names = getattr(import_module(f"{package}{room}"), "__all__", ())
            exported |= {room, *(f"{room}.{each}" for each in names)}
    for user, path in modules().items():
        if user.startswith(package):
            continue
        for imported in imports_of(path):
            if imported.startswith((f"{package}errors.", f"{package}options.")):
                continue  # two modules of the client that are public by their own names
            if (user.split(".")[1], folder(imported).removeprefix("packhorse.client.")) in DEEP:
                continue
            if imported.startswith(package):
                assert imported.removeprefix(package) in exported, path


def test_every_exception_is_one() -> None:
    """What reaches deeper is listed only while it does."""
    found = {
        (user.split(".")[1], folder(imported).removeprefix("packhorse.client."))
        for user, path in modules().items()
        if user.split(".")[1] in SHELF
        for imported in imports_of(path)
    }
    assert DEEP.keys() <= found
