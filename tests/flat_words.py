"""Loaders, datasets and jobs from flat words, for tests that vary one option after the other.

Owns which object each word belongs to.
"""

from dataclasses import fields
from typing import Any

import packhorse.prepare as _prepare
from packhorse.client import (
    BatchFormat,
    LoaderOptions,
    PackedBins,
    PackedDataLoader,
    PackedDataset,
    Run,
    Server,
    Topology,
    create_packed_dataloader,
)
from packhorse.dataset import Manifest
from packhorse.prepare import Execution, Grouping, InputColumns, PlanOptions

FLAT = {"batch_size", "seed", "preset", "balance", "num_epochs", "num_bins_multiple_of", "output"}


def _taken(kind: Any, words: dict[str, Any]) -> dict[str, Any]:
    """The words that are fields of a class; they are taken out."""
    return {each.name: words.pop(each.name) for each in fields(kind) if each.name in words and each.name not in FLAT}


def _rank(words: dict[str, Any]) -> dict[str, Any]:
    mesh = words.pop("device_mesh", None)
    if mesh is not None:
        return {"rank": mesh}
    if "world_size" in words:
        return {"rank": (words.pop("rank", 0), words.pop("world_size"))}
    return {"rank": words.pop("rank")} if "rank" in words else {}


def arguments(target: Any, dataset: Any, words: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Target, dataset and keywords of `create_packed_dataloader`; the loader's words remain as they are."""
    left = dict(words)
    rank = _rank(left)
    access = {name: left.pop(name) for name in ("access", "timeout_seconds", "retry") if name in left}
    run = {name: left.pop(name) for name in ("epoch", "skip") if name in left}
    batch, topology = _taken(BatchFormat, left), _taken(Topology, left)
    found = rank | left
    if batch:
        found["batch"] = BatchFormat(preset=found.pop("preset", None), **batch)
    if topology:
        found["topology"] = Topology(**topology)
    return Server(target, **access) if access else target, Run(dataset, **run) if run else dataset, found


def packed_dataset(target: Any, dataset: Any, tokens: Any, **words: Any) -> PackedDataset:
    """A PackedDataset."""
    target, dataset, options = arguments(target, dataset, words)
    return PackedDataset(target, dataset, tokens, **options)


def packed_bins(target: Any, dataset: Any, tokens: Any, **words: Any) -> PackedBins:
    """PackedBins."""
    target, dataset, options = arguments(target, dataset, words)
    return PackedBins(target, dataset, tokens, **options)


def packed_data(target: Any, dataset: Any, tokens: Any, **words: Any) -> Any:
    """`packhorse.trainers.PackedData`."""
    from packhorse.trainers import PackedData

    target, dataset, options = arguments(target, dataset, words)
    loader = {name: options.pop(name) for name in ("device", "prefetch_factor", "depth", "rank") if name in options}
    if "balance" in options:
        options["topology"] = Topology(balance=options.pop("balance"), **words_of(options.pop("topology", Topology())))
    if loader:
        options["loader"] = LoaderOptions(**loader)
    return PackedData(target, dataset, tokens, **options)


def words_of(topology: Topology) -> dict[str, Any]:
    """The fields of a topology, without its balance."""
    return {each.name: getattr(topology, each.name) for each in fields(topology) if each.name != "balance"}


def packed_dataloader(target: Any, dataset: Any, tokens: Any, **words: Any) -> PackedDataLoader:
    """A PackedDataLoader."""
    target, dataset, options = arguments(target, dataset, words)
    of_loader = {each.name: options.pop(each.name) for each in fields(LoaderOptions) if each.name in options}
    return create_packed_dataloader(target, dataset, tokens, loader=LoaderOptions(**of_loader), **options)


_PLAN = ("algorithm", "max_sequences_per_bin", "over_length", "keep", "align", "extra_tokens")
_COLUMNS = {"id_column": "id", "on_bad_row": "on_bad_row", "resources": "resources"}
_GROUPING = {"group_column": "column", "group_size": "size", "groups": "numbers"}
_EXECUTION = ("engine", "workers", "ray_address", "time_limit_seconds", "resume", "progress")


def _some(words: dict[str, Any], names: Any) -> dict[str, Any]:
    """Words that are given, by the names of fields; they are taken out."""
    named = names if isinstance(names, dict) else {name: name for name in names}
    return {field: words.pop(word) for word, field in named.items() if words.get(word) is not None or word in words}


def _job(words: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `prepare` and `shard`."""
    plan, columns = _some(words, _PLAN), _some(words, _COLUMNS)
    grouping = {name: value for name, value in _some(words, _GROUPING).items() if value is not None}
    execution = _some(words, _EXECUTION)
    if plan:
        words["plan"] = PlanOptions(max_seq_len=words.pop("max_seq_len"), **plan)
    if columns:
        words["columns"] = InputColumns(length=words.pop("length_column", None), **columns)
    if grouping:
        words["grouping"] = Grouping(**grouping)
    if execution:
        words["execution"] = Execution(**execution)
    return words


def prepare(*inputs: Any, **words: Any) -> Manifest:
    """`packhorse.prepare.prepare`."""
    return _prepare.prepare(*inputs, **_job(words))


def dry_run(*inputs: Any, **words: Any) -> Any:
    """`packhorse.prepare.dry_run`."""
    return _prepare.dry_run(*inputs, **_job(words))


def shard(*inputs: Any, **words: Any) -> dict[str, Manifest]:
    """`packhorse.prepare.shard`."""
    return _prepare.shard(*inputs, **_job(words))


def tokenize(*inputs: Any, **words: Any) -> Any:
    """`packhorse.tokenize.tokenize`."""
    import packhorse.tokenize as _tokenize

    special, execution = _some(words, ("bos", "eos", "append_eos", "special_in_text")), _some(words, _EXECUTION)
    if special:
        words["special"] = _tokenize.SpecialTokens(**special)
    names = ("text_column", "id_column", "glob", "undecodable", "on_bad_row")
    documents = {"split": words.pop("documents", None), **_some(words, names)}
    options = {"documents": _tokenize.DocumentOptions(**documents), "execution": Execution(**execution)}
    return _tokenize.tokenize(*inputs, **words, **options)


def tokenize_fine_tuning(*inputs: Any, **words: Any) -> Any:
    """`packhorse.tokenize.tokenize_fine_tuning`."""
    import packhorse.tokenize as _tokenize

    execution = _some(words, _EXECUTION)
    return _tokenize.tokenize_fine_tuning(*inputs, **words, execution=Execution(**execution))
