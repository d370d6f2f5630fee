"""A prepared folder is read as it was written, or refused with what is wrong and where."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse.dataset import Manifest, PlanOptions, PreparedDatasetError, open_prepared
from packhorse.dataset.digest import dataset_digest
from packhorse.dataset.manifest import EPOCH_VERSION, FORMAT_VERSION
from packhorse.packing import counts_of_templates
from packhorse.prepare import load_prepared

FILES = ("manifest.json", "counts.json", "templates.json", "pools.npy")
Damaged = Callable[[str, bytes | None], Path]


def refused(folder: Path, *said: str) -> None:
    for load in (open_prepared, load_prepared):
        with pytest.raises(PreparedDatasetError) as caught:
            load(folder)
        for words in said:
            assert words in str(caught.value)


def reseal(folder: Path, **changes: Any) -> None:
    """Makes every checksum of an edited folder right again, and the manifest too, with some fields changed."""
    manifest = Manifest.parse((folder / "manifest.json").read_bytes(), "manifest.json")
    checksums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest.checksums}
    (folder / "manifest.json").write_bytes(replace(manifest, **{"checksums": checksums, **changes}).render())


def test_a_sound_folder_opens(prepared: Path) -> None:
    dataset = open_prepared(prepared)
    assert dataset.name == "set"
    assert dataset.counts == counts_of_templates(dataset.templates)
    assert dataset.plan.num_bins == dataset.manifest.num_bins
    assert dataset.pool.dtype == np.uint32
    assert not dataset.pool.flags.writeable
    reseal(prepared)
    open_prepared(prepared)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(name: str, pristine: Path, prepared: Path) -> None:
    path, content = prepared / name, (pristine / name).read_bytes()
    # Every byte, one bit each: a stride of 3 goes through all bits of neighbouring bytes.
    for offset in range(len(content)):
        flipped = bytearray(content)
        flipped[offset] ^= 1 << (offset * 3 % 8)
        path.write_bytes(flipped)
        with pytest.raises(PreparedDatasetError, match=name):
            open_prepared(prepared)
    path.write_bytes(content)
    open_prepared(prepared)


def test_every_bit_of_the_pool_header_is_checked_without_reading_the_pool(pristine: Path, prepared: Path) -> None:
    path, content = prepared / "pools.npy", (pristine / "pools.npy").read_bytes()
    for bit in range(128 * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(flipped)
        # A flip in the padding does no harm until `check_pool` finds it; any other is found at once.
        with pytest.raises(PreparedDatasetError, match=r"pools\.npy"):
            open_prepared(prepared, check_pool=False).check_pool()


@pytest.mark.parametrize("name", FILES)
def test_missing_truncated_and_extended_files_are_named(name: str, pristine: Path, damaged: Damaged) -> None:
    content = (pristine / name).read_bytes()
    refused(damaged(name, None), name)
    for other in (content[:-1], content[: len(content) // 2], b"", content + b"\0", content + b"\n", b" " + content):
        refused(damaged(name, other), name)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"null\n", b"[]\n", b"{}\n", b'"x"\n', b"\xff\xfe", b"[" * 100])
def test_files_of_another_shape_are_named_even_with_matching_checksums(
    name: str, content: bytes, damaged: Damaged
) -> None:
    folder = damaged(name, content)
    if name != "manifest.json":
        pristine_manifest = (folder / "manifest.json").read_bytes()
        manifest = Manifest.parse(pristine_manifest, "manifest.json")
        checksums = {**manifest.checksums, name: hashlib.sha256(content).hexdigest()}
        (folder / "manifest.json").write_bytes(replace(manifest, checksums=checksums).render())
    refused(folder, name if (name, content) != ("counts.json", b"{}\n") else "templates.json")


@pytest.mark.parametrize("edit", ["one bin fewer", "one bin more", "a length swapped", "over capacity", "ascending"])
def test_a_plan_that_does_not_use_every_sequence_once_is_refused(edit: str, prepared: Path) -> None:
    templates = json.loads((prepared / "templates.json").read_text())
    if edit == "one bin fewer":
        templates[0][1] -= 1
    elif edit == "one bin more":
        templates[-1][1] += 1
    elif edit == "a length swapped":
        templates[0][0] = [templates[0][0][0] - 1]
    elif edit == "over capacity":
        templates.append([[64, 64], 1])
    else:
        entry = next(e for e in templates if len(set(e[0])) > 1)
        entry[0].reverse()
    (prepared / "templates.json").write_text(json.dumps(templates, separators=(",", ":")) + "\n")
    reseal(prepared)
    refused(prepared, "templates.json", "does not fit")


def test_counts_that_the_plan_does_not_have_are_refused(prepared: Path) -> None:
    counts = json.loads((prepared / "counts.json").read_text())
    counts[next(iter(counts))] += 1
    (prepared / "counts.json").write_text(json.dumps(counts, separators=(",", ":")) + "\n")
    reseal(prepared)
    refused(prepared, "does not fit counts.json")


def test_another_pool_is_refused_by_the_digest(prepared: Path) -> None:
    pool = np.load(prepared / "pools.npy")
    pool[[0, -1]] = pool[[-1, 0]]
    np.save(prepared / "pools.npy", pool)
    reseal(prepared)
    refused(prepared, "digest")


@pytest.mark.parametrize("pool", [np.zeros(300, np.int64), np.zeros(299, np.uint32), np.zeros((300, 1), np.uint32)])
def test_a_pool_of_another_type_or_size_is_refused(pool: np.ndarray[Any, Any], prepared: Path) -> None:
    np.save(prepared / "pools.npy", pool)
    reseal(prepared)
    refused(prepared, "pools.npy", "uint32 [300]")


def test_a_pickled_pool_is_never_loaded(prepared: Path) -> None:
    np.save(prepared / "pools.npy", np.array([print] * 300, dtype=object), allow_pickle=True)
    reseal(prepared)
    refused(prepared, "pools.npy")


@pytest.mark.parametrize("field", ["num_sequences", "num_bins", "total_tokens"])
def test_a_manifest_that_states_other_numbers_is_refused(field: str, prepared: Path) -> None:
    manifest = open_prepared(prepared).manifest
    reseal(prepared, **{field: getattr(manifest, field) + 1})
    refused(prepared, "manifest.json" if field != "num_sequences" else "pools.npy")


def test_options_are_part_of_the_digest(prepared: Path) -> None:
    manifest = open_prepared(prepared).manifest
    reseal(prepared, options=replace(manifest.options, over_length="drop"))
    refused(prepared, "digest")


def test_other_versions_are_refused_by_number(prepared: Path) -> None:
    reseal(prepared, format_version=FORMAT_VERSION + 1)
    refused(prepared, "manifest.json", f"format version {FORMAT_VERSION + 1}", "a newer release wrote it")


def test_other_epoch_functions_are_refused_by_number(prepared: Path) -> None:
    reseal(prepared, epoch_version=EPOCH_VERSION + 1)
    refused(prepared, "manifest.json", f"epoch version {EPOCH_VERSION + 1}")


def test_unlisted_or_unknown_checksums_are_refused(prepared: Path) -> None:
    checksums = open_prepared(prepared).manifest.checksums
    reseal(prepared, checksums={name: checksums[name] for name in ("counts.json", "pools.npy")})
    refused(prepared, "manifest.json")


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "is not a folder")
    refused(tmp_path, "manifest.json is missing")


def test_a_manifest_survives_rendering(prepared: Path) -> None:
    data = (prepared / "manifest.json").read_bytes()
    manifest = Manifest.parse(data, "manifest.json")
    assert manifest.render() == data
    assert manifest.options == PlanOptions(max_seq_len=64)
    assert manifest.digest == dataset_digest(
        load_prepared(prepared)[1], load_prepared(prepared)[2], manifest.options, manifest.checksums
    )
