"""Images through loaders: made in workers, each once; a file that is gone stops the epoch, and nothing is lost."""

import os
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.flat_words import packed_dataloader, prepare

from packhorse.client import MemoryDatasets
from packhorse.client.batches import MediaError
from packhorse.formats import MegatronWriter
from packhorse.vision import media_of

IMAGE, NUM_SEQUENCES = 9, 240
QWEN = SimpleNamespace(model_type="qwen3_vl", image_token_id=IMAGE, vision_config=SimpleNamespace(spatial_merge_size=2))


class Folder:
    """Reads `ID.npy`, which holds the grids of a sequence's images; says in each patch whose it is, and who read it."""

    def __init__(self, path):
        self.path = path

    def __call__(self, ids):
        loaded = {}
        for sequence_id in ids:
            grids = np.load(self.path / f"{sequence_id}.npy")
            patches = torch.zeros(int(grids.prod(1).sum()), 2)
            patches[:, 0], patches[:, 1] = sequence_id, os.getpid()
            loaded[sequence_id] = {"pixel_values": patches, "image_grid_thw": torch.from_numpy(grids)}
        return loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    (folder / "images").mkdir()
    random = np.random.default_rng(2)
    with MegatronWriter(folder / "tokens", vocab_size=4096) as writer:
        for sequence_id in range(NUM_SEQUENCES):
            tokens = [10 + sequence_id, *random.integers(1, 9, random.integers(1, 9))]
            grids = np.array([[1, *(2 * random.integers(1, 4, 2))] for _ in range(random.integers(-1, 3))], np.int64)
            for grid in grids:
                tokens += [IMAGE] * (grid.prod() // 4) + [1]
            if len(grids):
                np.save(folder / "images" / f"{sequence_id}.npy", grids)
            writer.append(tokens)
    prepare(folder / "tokens.idx", output=folder / "root" / "images", max_seq_len=48, progress=False, workers=1)
    return folder


@pytest.fixture(scope="module")
def open_loader(folder, make_server):
    """Function: a loader of the dataset."""
    with make_server(folder / "root") as server:

        def make(on_error="fail", **options):
            media = media_of(QWEN, Folder(folder / "images"), on_error=on_error)
            options = {"batch_size": 2, "seed": 5, "num_workers": 2, "device": "cpu", "world_size": 1} | options
            return packed_dataloader(server.target, "images", folder / "tokens.idx", media=media, **options)

        yield make


def seen(batches):
    """Counters of the ids in batches, and of the ids of their images, one for each placeholder."""
    ids, images = Counter(), Counter()
    for batch in batches:
        ids.update(batch["ids"].tolist())
        if batch["media"].keys:
            of_patches = batch["pixel_values"][::4, 0].int().tolist()
            assert of_patches == np.repeat(batch["media"].ids, batch["media"].counts).tolist()
            images.update(of_patches)
    return ids, images


@pytest.fixture(scope="module")
def whole(folder):
    images = Counter()
    for path in (folder / "images").iterdir():
        images[int(path.stem)] = int(np.load(path).prod(1).sum()) // 4
    return Counter(range(NUM_SEQUENCES)), images


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_sequence_and_image_once_whoever_reads_it(open_loader, whole, num_workers):
    with open_loader(num_workers=num_workers) as loader:
        batches = list(loader)
    assert seen(batches) == whole
    readers = {int(pid) for batch in batches if batch["media"].keys for pid in batch["pixel_values"][:, 1].tolist()}
    assert len(readers) == max(num_workers, 1)
    assert (os.getpid() in readers) is (num_workers == 0)


def test_ranks_have_the_images_of_their_own_sequences(open_loader, whole):
    found = [Counter(), Counter()]
    for rank in range(3):
        with open_loader(rank=rank, world_size=3, num_workers=0) as loader:
            for number, counter in enumerate(seen(loader)):
                found[number] += counter
    assert tuple(found) == whole


@pytest.mark.parametrize(
    "break_it", ["gone", *(pytest.param(name, marks=pytest.mark.long) for name in ("broken", "another image"))]
)
def test_a_file_that_fails_stops_the_epoch_and_nothing_is_lost(open_loader, folder, whole, break_it):
    with open_loader(num_workers=0) as loader:
        order = [batch["media"].ids.tolist() for batch in loader]
    victim = order[len(order) // 2][0]
    path = folder / "images" / f"{victim}.npy"
    sound = path.read_bytes()
    batches = []
    try:
        if break_it == "gone":
            path.unlink()
        elif break_it == "broken":
            path.write_bytes(sound[:40])
        else:
            np.save(path, np.array([[1, 2, 40]]))
        with (
            pytest.raises(MediaError, match=rf"sequence {victim}: .*resume after the last batch's cursor"),
            open_loader() as loader,
        ):
            batches.extend(loader)
    finally:
        path.write_bytes(sound)
    assert 0 < len(batches) < len(order)
    with open_loader(batch_size=1, num_workers=0) as loader:
        loader.load_state_dict(batches[-1]["cursor"])
        batches += list(loader)
    assert seen(batches) == whole


def test_what_fails_is_left_out_of_the_loss(open_loader, folder, whole):
    victims = sorted(whole[1])[::7]
    hidden = folder / "hidden"
    hidden.mkdir()
    for victim in victims:
        (folder / "images" / f"{victim}.npy").rename(hidden / f"{victim}.npy")
    try:
        with open_loader(on_error="mask", num_workers=0) as loader:
            batches = list(loader)
    finally:
        for victim in victims:
            (hidden / f"{victim}.npy").rename(folder / "images" / f"{victim}.npy")
    ids, images = seen(batches)
    assert ids == whole[0]
    assert images == Counter({i: count for i, count in whole[1].items() if i not in victims})
    assert sorted(i for batch in batches for i in batch["media"].masked_ids.tolist()) == victims
    for batch in batches:
        labels = batch["labels"][batch["attention_mask"].bool()]
        for sequence_id, (start, end) in zip(
            batch["ids"].tolist(), pairwise(batch["cu_seqlens"].tolist()), strict=True
        ):
            assert (labels[start:end] != -100).any() == (sequence_id not in victims)


def test_an_empty_bin_holds_no_image():
    """More ranks than bins: the remainder policy adds empty ones."""
    data = MemoryDatasets({"one": [4]}, max_seq_len=8)
    media = media_of(QWEN, Folder(None))
    options = {"batch_size": 1, "num_workers": 0, "device": "cpu", "remainder": "empty", "media": media}
    with packed_dataloader(data, "one", [[1, 2, 3, 4]], rank=1, world_size=2, **options) as loader:
        [batch] = loader
    assert batch["media"].ids.tolist() == []
    assert batch["position_ids"].shape == (4, 1, 8)
