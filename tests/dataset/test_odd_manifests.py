"""However odd a manifest is, opening the folder gives a PreparedDatasetError, in bounded time."""

import copy
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.dataset import Manifest, PreparedDatasetError, open_prepared
from packhorse.dataset.manifest import MOST_MANIFEST_BYTES
from packhorse.prepare import load_prepared

Content = dict[str, Any]


def render(content: Any) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def sealed(content: Content) -> bytes:
    """A manifest of any content whose checksum of itself is right."""
    content = {name: value for name, value in content.items() if name != "checksum"}
    return render({**content, "checksum": hashlib.sha256(render(content)).hexdigest()})


def read(folder: Path) -> Content:
    content: Content = json.loads((folder / "manifest.json").read_bytes())
    return content


def at(*path: str, value: Any) -> Callable[[Content], None]:
    """An edit that sets one field."""

    def edit(content: Content) -> None:
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return edit


def without(*path: str) -> Callable[[Content], None]:
    """An edit that takes one field away."""

    def edit(content: Content) -> None:
        for name in path[:-1]:
            content = content[name]
        del content[path[-1]]

    return edit


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


NAN, INFINITY = float("nan"), float("inf")
EDITS: dict[str, tuple[Callable[[Content], None], str]] = {
    "unknown option": (at("options", "shuffle", value=True), "options.shuffle"),
    "unknown field": (at("colour", value="red"), "colour"),
    "no id_column": (without("id_column"), "lacks 'id_column'.*prepare the dataset again"),
    "no plan_cut_off": (without("plan_cut_off"), "lacks 'plan_cut_off'.*prepare the dataset again"),
    "no option": (without("options", "align"), "lacks 'options.align'"),
    "null checksums": (at("checksums", value=None), "checksums"),
    "checksums of numbers": (at("checksums", "pools.npy", value=1), "checksums"),
    "checksum that is none": (at("checksums", "pools.npy", value="../../x"), "SHA-256"),
    "no checksums": (at("checksums", value={}), "lists"),
    "checksum of another file": (at("checksums", "../secret", value="0" * 64), "lists"),
    "null options": (at("options", value=None), "options is not an object"),
    "list of options": (at("options", value=[1]), "options is not an object"),
    "null ledger": (at("over_length", value=None), "over_length is not an object"),
    "negative ledger": (at("over_length", "sequences", value=-1), "over_length"),
    "huge ledger": (at("over_length", "sequences", value=2**70), "over_length"),
    "ledger of text": (at("over_length", "tokens", value="7"), "over_length.tokens"),
    "nested": (at("source", value=deep(200)), "source"),
    "lower bound 0": (at("lower_bound", value=0), "lower_bound"),
    "lower bound negative": (at("lower_bound", value=-3), "lower_bound"),
    "lower bound too high": (at("lower_bound", value=10**6), "lower_bound"),
    "lower bound true": (at("lower_bound", value=True), "lower_bound"),
    "efficiency NaN": (at("efficiency", value=NAN), "efficiency"),
    "efficiency infinite": (at("efficiency", value=INFINITY), "efficiency"),
    "efficiency text": (at("efficiency", value="0.9"), "efficiency"),
    "efficiency another": (at("efficiency", value=0.5), "efficiency"),
    "no bins": (at("num_bins", value=0), "num_bins"),
    "float bins": (at("num_bins", value=3.0), "num_bins"),
    "no sequences": (at("num_sequences", value=0), "num_sequences"),
    "huge sequences": (at("num_sequences", value=10**400), "num_sequences"),
    "tokens over capacity": (at("total_tokens", value=10**9), "total_tokens"),
    "own tokens over tokens": (at("own_tokens", value=10**9), "own_tokens"),
    "own tokens too few": (at("own_tokens", value=300), "own_tokens"),
    "capacity": (at("total_capacity", value=1), "total_capacity"),
    "max_seq_len 0": (at("options", "max_seq_len", value=0), "max_seq_len"),
    "max_seq_len huge": (at("options", "max_seq_len", value=2**31), "max_seq_len"),
    "max_seq_len NaN": (at("options", "max_seq_len", value=NAN), "options.max_seq_len"),
    "align 0": (at("options", "align", value=0), "align"),
    "extra_tokens negative": (at("options", "extra_tokens", value=-2), "extra_tokens"),
    "no room": (at("options", "extra_tokens", value=64), "extra_tokens"),
    "per bin 0": (at("options", "max_sequences_per_bin", value=0), "max_sequences_per_bin"),
    "cap of no context plan": (at("options", "cost_cap_percent", value=120), "cost_cap_percent is said where"),
    "context plan without a cap": (at("options", "tokens_per_rank", value=32), "cost_cap_percent is said where"),
    "policy": (at("options", "over_length", value="explode"), "over_length"),
    "keep": (at("options", "keep", value="tail"), "tail"),
    "id type": (at("id_dtype", value="object"), "id_dtype"),
    "start type": (at("start_dtype", value="float64"), "start_dtype"),
    "starts that are not there": (at("start_dtype", value="uint32"), "lists"),
    "sum negative": (at("ids_sum_a", value=-1), "ids_sum"),
    "sum huge": (at("ids_sum_b", value=2**64), "ids_sum"),
    "digest": (at("digest", value="0"), "digest"),
    "id column of numbers": (at("id_column", value=3), "id_column"),
    "half a surrogate": (at("id_column", value="\ud800"), "id_column"),
    "null inputs": (at("inputs", value=None), "states inputs null, which is the default and must be left out"),
    "null etag": (
        at("inputs", "files", 0, "etag", value=None),
        "states inputs.files.etag null, which is the default and must be left out",
    ),
    "inputs without rows": (without("inputs", "rows"), "lacks 'inputs.rows'"),
    "inputs of negative rows": (at("inputs", "rows", value=-1), "inputs counts"),
    "more files than named": (at("inputs", "num_files", value=7), "inputs names the first files"),
    "more skipped than named": (at("inputs", "skipped", "rows", value=1), "inputs names the first rows skipped"),
    "many skipped without a list": (at("inputs", "skipped", value={"rows": 10**6, "first": []}), "inputs names"),
    "file of text": (at("inputs", "files", value=["x"]), "inputs.files is not an object"),
    "files of nothing": (at("inputs", "files", value={}), "inputs.files"),
    "cut off as text": (at("plan_cut_off", value="no"), "plan_cut_off"),
    "epoch version as text": (at("epoch_version", value="1"), "epoch_version"),
    "format version as list": (at("format_version", value=[1]), "format version"),
    "format version true": (at("format_version", value=True), "format_version"),
}


@pytest.mark.parametrize("name", EDITS)
def test_odd_fields_are_refused_by_name(name: str, prepared: Path) -> None:
    edit, said = EDITS[name]
    content = read(prepared)
    edit(content)
    (prepared / "manifest.json").write_bytes(sealed(content))
    with pytest.raises(PreparedDatasetError, match=said) as caught:
        open_prepared(prepared)
    assert "set/manifest.json" in str(caught.value)
    assert len(str(caught.value)) < 1000


BYTES = {
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "deep and closed": b'{"format_version": 1, "x": ' + b"[" * 900 + b"]" * 900 + b"}",
    "number": b"7",
    "text": b'"x"',
    "list": b"[1, 2]",
    "NaN": b"NaN",
    "long number": b'{"format_version": ' + b"1" * 5000 + b"}",
    "UTF-16": '{"format_version": 1}'.encode("utf-16"),
    "NUL": bytes(1000),
    "no object inside": b'{"format_version": 1, "options": 3}',
}


@pytest.mark.parametrize("name", BYTES)
def test_odd_bytes_are_refused(name: str, prepared: Path) -> None:
    (prepared / "manifest.json").write_bytes(BYTES[name])
    for load in (open_prepared, load_prepared):
        with pytest.raises(PreparedDatasetError, match=r"set/manifest\.json"):
            load(prepared)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _gigantic(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [_fifo, _folder, _loop, _device, _gigantic])
@pytest.mark.parametrize("name", ["manifest.json", "counts.json", "templates.json", "pools.npy"])
def test_what_is_no_file_of_ours_is_refused_without_waiting(
    name: str, make: Callable[[Path], None], prepared: Path
) -> None:
    (prepared / name).unlink()
    make(prepared / name)
    for load in (open_prepared, load_prepared):
        with pytest.raises(PreparedDatasetError, match=f"set/{name}"):
            load(prepared)


def test_a_manifest_of_before_inputs_were_recorded_opens(prepared: Path) -> None:
    content = read(prepared)
    del content["inputs"]
    (prepared / "manifest.json").write_bytes(sealed(content))
    manifest = open_prepared(prepared).manifest
    assert manifest.inputs is None
    assert manifest.render() == (prepared / "manifest.json").read_bytes()


def test_a_large_manifest_is_refused_unread(prepared: Path) -> None:
    content = read(prepared)
    content["source"] = "x" * MOST_MANIFEST_BYTES
    (prepared / "manifest.json").write_bytes(sealed(content))
    with pytest.raises(PreparedDatasetError, match="at most"):
        open_prepared(prepared)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**400, NAN, INFINITY, "", "\ud800", "uint32", "int64"])
    | st.floats()
    | st.text(max_size=8)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@settings(max_examples=400)
@given(data=st.data())
def test_any_mutation_opens_as_it_states_or_is_refused(pristine: Path, data: st.DataObject) -> None:
    content = copy.deepcopy(read(pristine))
    for _ in range(data.draw(st.integers(1, 3))):
        place: Content = content
        inner = [place, *(value for value in place.values() if isinstance(value, dict))]
        place = data.draw(st.sampled_from(inner))
        if not place:
            continue
        name = data.draw(st.sampled_from(sorted(place)) | st.text(max_size=8))
        if data.draw(st.booleans()):
            place[name] = data.draw(values)
        else:
            place.pop(name, None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(pristine, Path(name) / "set"))
        (folder / "manifest.json").write_bytes(sealed(content))
        try:
            manifest = open_prepared(folder).manifest
        except PreparedDatasetError as error:
            str(error).encode()
            return
        assert isinstance(manifest, Manifest)
        assert manifest.render() == (folder / "manifest.json").read_bytes()
        assert 1 <= manifest.lower_bound <= manifest.num_bins
        assert manifest.digest == read(pristine)["digest"]


@settings(max_examples=200)
@given(data=st.data(), which=st.sampled_from(["counts.json", "templates.json"]))
def test_any_mutation_of_the_files_beside_it_is_refused(pristine: Path, which: str, data: st.DataObject) -> None:
    files = {name: json.loads((pristine / name).read_bytes()) for name in ("counts.json", "templates.json")}
    content = files[which]
    if isinstance(content, dict):
        content[data.draw(st.sampled_from(sorted(content)) | st.text(max_size=4))] = data.draw(values)
    else:
        index = data.draw(st.integers(0, len(content) - 1))
        lengths = content[index][0]
        content[index] = data.draw(values | st.tuples(st.just(lengths) | st.lists(scalars, max_size=3), scalars))
    rendered = (json.dumps(content, separators=(",", ":")) + "\n").encode()
    if rendered == (pristine / which).read_bytes():
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(pristine, Path(name) / "set"))
        (folder / which).write_bytes(rendered)
        manifest = read(pristine)
        manifest["checksums"][which] = hashlib.sha256(rendered).hexdigest()
        (folder / "manifest.json").write_bytes(sealed(manifest))
        with pytest.raises(PreparedDatasetError):
            open_prepared(folder)
