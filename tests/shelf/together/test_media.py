"""Images in batches: an oracle sequence by sequence, and whatever may be wrong with what `load` returns."""

import io
import logging
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import BatchFormat, PackedBins
from packhorse.client.batches import BatchAssembler, Media, MediaError, MediaLayout, Separators
from packhorse.client.batches.batch import MixedComponent
from packhorse.client.presets import list_presets
from packhorse.client.sources import IndexableSource, MixtureSource
from packhorse.client.streams.blocks import AS_IT_IS, MASKED, BinBlock
from packhorse.parallel import context_batch
from packhorse.topology import ContextRule
from packhorse.types import Component
from packhorse.vision import media_of

IMAGE, PAD, BOS = 9, 0, 1
QWEN = SimpleNamespace(model_type="qwen3_vl", image_token_id=IMAGE, vision_config=SimpleNamespace(spatial_merge_size=2))
GRIDS = [(1, 2, 2), (1, 2, 6), (1, 4, 4), (2, 4, 2)]
"""In patches; a placeholder is 2 · 2 of them."""


def tensors_of(sequence_id, images):
    """A processor's tensors of images by their grids; every patch tells its sequence and its number there."""
    num_patches = sum(t * h * w for t, h, w in images)
    patches = torch.tensor([[1000.0 * sequence_id + i] for i in range(num_patches)])
    return {"pixel_values": patches, "image_grid_thw": torch.tensor(images)}


def placeholders(grid):
    t, h, w = grid
    return t * h * w // 4


class Loads:
    """A function that loads images, and writes down what it was asked for."""

    def __init__(self, images, broken=()):
        self.images, self.broken, self.asked = images, broken, []

    def __call__(self, ids):
        self.asked.append(ids)
        if bad := [i for i in ids if i in self.broken]:
            raise FileNotFoundError(f"no file {bad[0]}.png")
        return {i: tensors_of(i, self.images[i]) for i in ids}


def block_of(bins, **options):
    """Bins of (id, length)."""
    flat = [entry for one_bin in bins for entry in one_bin]
    return BinBlock(
        ids=np.array([i for i, _ in flat], np.int64),
        lengths=np.array([n for _, n in flat], np.int32),
        bin_ends=np.cumsum([len(one_bin) for one_bin in bins], dtype=np.int64),
        positions=np.arange(len(bins)),
        **options,
    )


def assembled(images, tokens, load=None, *, on_error="fail", bins=None, block=None, **options):
    """A batch of one bin of all sequences, unless bins are given."""
    media = media_of(QWEN, load or Loads(images), on_error=on_error)
    block = block or block_of(bins or [[(i, len(tokens[i])) for i in tokens]])
    assembler = BatchAssembler(options.pop("max_seq_len", 64), media=media, pad_token_id=PAD, **options)
    return assembler.assemble(block, IndexableSource(tokens))


@st.composite
def cases(draw):
    """Bins of (id, room), tokens and images by id, and options."""
    align, has_bos = draw(st.sampled_from([1, 4])), draw(st.booleans())
    bins, tokens, images = [], {}, {}
    for _ in range(draw(st.integers(1, 3))):
        one_bin, free = [], 64
        for _ in range(draw(st.integers(0, 4))):
            sequence_id = 7 * len(tokens) + 3
            of_it, held = [], [draw(st.integers(2, 8))]
            for grid in draw(st.lists(st.sampled_from(GRIDS), max_size=3)):
                of_it.append(grid)
                held += [IMAGE] * placeholders(grid) + draw(st.lists(st.integers(2, 8), max_size=3))
            room = -(-(len(held) + has_bos) // align) * align
            if room > free:
                continue
            tokens[sequence_id], images[sequence_id] = held, of_it
            one_bin.append((sequence_id, room))
            free -= room
        bins.append(one_bin)
    broken = draw(st.sets(st.sampled_from([i for i in images if images[i]]))) if any(images.values()) else set()
    return bins, tokens, images, broken, align, has_bos, draw(st.booleans()), draw(st.booleans())


def positions_of(tokens, images):
    """Three positions for each token of a sequence, one token after the other."""
    found, at, rest = [], 0, iter(images)
    position = 0
    while at < len(tokens):
        if tokens[at] != IMAGE:
            found.append((position,) * 3)
            at, position = at + 1, position + 1
            continue
        t, h, w = next(rest)
        found += [
            (position + f, position + y, position + x) for f in range(t) for y in range(h // 2) for x in range(w // 2)
        ]
        at, position = at + t * h * w // 4, position + max(h, w) // 2
    return found


@settings(max_examples=200)
@given(cases())
def test_a_batch_equals_its_sequences_one_by_one(case):
    bins, tokens, images, broken, align, has_bos, shift, flatten = case
    load = Loads(images, broken)
    separators = Separators(bos_token_id=BOS) if has_bos else Separators()
    logging.disable(logging.WARNING)
    try:
        batch = assembled(
            images,
            tokens,
            load,
            bins=bins,
            on_error="mask",
            align=align,
            extra_tokens=int(has_bos),
            separators=separators,
            shift_labels=shift,
            flatten=flatten,
        )
    finally:
        logging.disable(logging.NOTSET)
    media, layout = batch["media"], batch["layout"]
    flat, labels = batch["input_ids"].flatten().tolist(), batch["labels"].flatten().tolist()
    positions = batch["position_ids"].flatten(1)
    found, patches = [], []
    for number, (sequence_id, start) in enumerate(zip(batch["ids"].tolist(), layout.starts.tolist(), strict=True)):
        held = [BOS] * has_bos + tokens[sequence_id]
        end = start + len(held)
        targets = [-100, *(-100 if token == IMAGE or sequence_id in broken else token for token in held[1:])]
        assert labels[start:end] == ([*targets[1:], -100] if shift else targets)
        if sequence_id in broken:
            held = [PAD if token == IMAGE else token for token in held]
        assert flat[start:end] == held
        of_it = [] if sequence_id in broken else images[sequence_id]
        assert positions[0, start:end].tolist() == list(range(len(held)))
        assert positions[1:, start:end].T.tolist() == [list(each) for each in positions_of(held, of_it)]
        at = start
        for t, h, w in of_it:
            at = flat.index(IMAGE, at)
            found.append((number, sequence_id, at, placeholders((t, h, w)), [t, h // 2, w // 2]))
            at += placeholders((t, h, w))
        if of_it:
            patches += tensors_of(sequence_id, of_it)["pixel_values"].flatten().tolist()
    fields = (media.sequences, media.ids, media.starts, media.counts, media.grids)
    assert list(zip(*(field.tolist() for field in fields), strict=True)) == found
    assert batch["pixel_values"].flatten().tolist() == patches if patches else "pixel_values" not in batch
    assert media.keys == (["pixel_values", "image_grid_thw"] if patches else [])
    assert set(media.masked_ids.tolist()) == broken
    assert flat.count(IMAGE) == media.counts.sum()
    asked = {i for ids in load.asked for i in ids}
    assert asked == {i for i in tokens if images[i]}, "only sequences with images are loaded"
    assert broken or len(load.asked) == bool(asked), "and all of them together"


IMAGES = {3: [(1, 2, 4)], 4: [], 5: [(1, 2, 2), (1, 4, 4)]}
TOKENS = {3: [2, IMAGE, IMAGE, 3], 4: [4, 5], 5: [6, IMAGE, 7, IMAGE, IMAGE, IMAGE, IMAGE, 8]}


def returning(sequence_id, **changes):
    """Loads all, with other tensors of one sequence; a key of None is left out."""

    def load(ids):
        loaded = {i: tensors_of(i, IMAGES[i]) for i in ids}
        if sequence_id in loaded:
            of_it = loaded[sequence_id] | changes
            loaded[sequence_id] = {key: value for key, value in of_it.items() if value is not None}
        return loaded

    return load


FAILURES = {
    "gone": (Loads(IMAGES, {5}), r"sequence 5: load raised FileNotFoundError: no file 5\.png; mend it and resume"),
    "fewer": (
        returning(5, **tensors_of(5, [(1, 2, 2)])),
        r"sequence 5: it holds 5 image tokens \(9\), but its 1 images need 1",
    ),
    "other order": (
        returning(5, **tensors_of(5, [(1, 4, 4), (1, 2, 2)])),
        r"sequence 5: other tokens lie between the 4 image tokens of its image 0, or its images come in another order",
    ),
    "no grid": (
        returning(5, image_grid_thw=None),
        r"sequence 5: load returned no 'image_grid_thw', but pixel_values",
    ),
    "other pixels": (
        returning(5, pixel_values=torch.zeros(3, 1)),
        r"sequence 5: .* pixel_values has 3 patches, but image_grid_thw .* says 20",
    ),
    "no tensor": (returning(5, pixel_values="x.png"), r"sequence 5: what load returned is not as the model takes it"),
    "nothing": (lambda ids: {i: tensors_of(i, IMAGES[i]) for i in ids if i != 5}, r"sequence 5: load returned nothing"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_is_told_by_id_or_left_out_of_the_loss(name, caplog):
    load, message = FAILURES[name]
    with pytest.raises(MediaError, match=message):
        assembled(IMAGES, TOKENS, load)
    batch = assembled(IMAGES, TOKENS, load, on_error="mask")
    [record] = caplog.records
    assert record.getMessage().startswith("left out of the loss: sequence 5: ")
    assert batch["media"].masked_ids.tolist() == [5]
    assert batch["media"].ids.tolist() == [3]
    sound = assembled(IMAGES, TOKENS)
    assert batch["input_ids"][0, 6:14].tolist() == [6, PAD, 7, PAD, PAD, PAD, PAD, 8]
    assert (batch["labels"][0, 6:] == -100).all()
    assert torch.equal(batch["labels"][0, :6], sound["labels"][0, :6])


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda ids: {i + 1: {} for i in ids}, r"was asked for the sequences \[3, 5\] and returned \[4, 6\]"),
        (lambda ids: [tensors_of(i, IMAGES[i]) for i in ids], r"it must return \{id: tensors\}"),
        (lambda ids: None, r"and returned None"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "mask"])
def test_answers_for_other_ids_are_always_refused(load, message, on_error):
    with pytest.raises(MediaError, match=message):
        assembled(IMAGES, TOKENS, load, on_error=on_error)


def test_images_that_do_not_stack_are_told_by_their_sequences():
    def load(ids):
        return {i: tensors_of(i, IMAGES[i]) | {"pixel_values": torch.zeros(8 if i == 3 else 20, i)} for i in ids}

    with pytest.raises(
        MediaError, match=r"pixel_values of sequence 3 has the shape \[8, 3\], and of sequence 5 \[20, 5"
    ):
        assembled(IMAGES, TOKENS, load)


def test_the_cause_of_a_failure_is_kept():
    with pytest.raises(MediaError) as caught:
        assembled(IMAGES, TOKENS, Loads(IMAGES, {3}))
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as workers send it


def test_an_image_that_a_plan_cut_is_refused_with_a_way_out():
    block = block_of([[(5, 5)]])
    with pytest.raises(MediaError, match=r"sequence 5: .*it was cut, and its images with it: .*over_length='drop'"):
        assembled(IMAGES, TOKENS, block=block, truncate=True, max_seq_len=5)
    whole = {**TOKENS, 5: [*TOKENS[5], *[2] * 9]}  # cut behind its images
    batch = assembled(IMAGES, whole, block=block_of([[(5, 12)]]), truncate=True, max_seq_len=12)
    assert batch["media"].counts.tolist() == [1, 4]
    later = block_of([[(5, 5)]], first_tokens=np.array([12]))  # a piece of text alone
    batch = assembled(IMAGES, whole, block=later, truncate=True, max_seq_len=12)
    assert batch["media"].ids.tolist() == []
    assert batch["position_ids"].shape == (4, 1, 12)


def test_images_of_redacted_sequences_are_not_loaded():
    load = Loads(IMAGES)
    for redaction in (2, MASKED):
        block = block_of([[(i, len(TOKENS[i])) for i in TOKENS]], redactions=np.array([AS_IT_IS, AS_IT_IS, redaction]))
        batch = assembled(IMAGES, TOKENS, load, block=block)
        assert batch["media"].ids.tolist() == [3]
        assert batch["media"].masked_ids.tolist() == []
        assert batch["input_ids"].eq(IMAGE).sum() == 2
        assert (batch["labels"][0, 6:] == -100).all()
    assert load.asked == [[3], [3]]


def test_a_sequence_that_is_there_twice_is_loaded_once_and_given_twice():
    load = Loads(IMAGES)
    batch = assembled(IMAGES, TOKENS, load, bins=[[(3, 4)], [(3, 4)]], max_seq_len=4)
    assert load.asked == [[3]]
    assert batch["pixel_values"].flatten().tolist() == [3000.0 + i for i in range(8)] * 2
    assert batch["media"].starts.tolist() == [1, 5]


def test_a_loss_mask_holds_beside_images():
    media = media_of(QWEN, Loads(IMAGES))
    assembler = BatchAssembler(4, media=media)
    mask = IndexableSource({3: [1, 1, 1, 0]})
    batch = assembler.assemble(block_of([[(3, 4)]]), IndexableSource(TOKENS), loss_mask=mask)
    assert batch["labels"].tolist() == [[-100] * 4]


def test_a_mixture_loads_by_component():
    components = [Component(name="web"), Component(name="art"), Component(name="text")]
    source = MixtureSource({each.name: IndexableSource(TOKENS) for each in components}).for_components(components)
    mixed = tuple(MixedComponent(each.name) for each in components)

    def assembled(block, load):
        assembler = BatchAssembler(4, media=media_of(QWEN, load), components=mixed)
        return assembler.assemble(block, source)

    block = block_of([[(3, 4)], [(3, 4)], [(4, 2)]], component_ids=np.array([1, 0, 2], np.int32))
    loads = {"web": Loads(IMAGES), "art": Loads({3: [(1, 4, 2)]})}
    batch = assembled(block, loads)
    assert batch["media"].grids.tolist() == [[1, 2, 1], [1, 1, 2]]
    assert [load.asked for load in loads.values()] == [[[3]], [[3]]]
    with pytest.raises(MediaError, match=r"sequence 3 of component 'art' holds the image token 9, but load .* lacks"):
        assembled(block, {"web": Loads(IMAGES)})
    with pytest.raises(ValueError, match=r"ids of a mixture belong to components: give load .* \{NAME: load\}"):
        assembled(block, Loads(IMAGES))
    with pytest.raises(ValueError, match="load of media is given by component, but the dataset is not a mixture"):
        BatchAssembler(4, media=media_of(QWEN, loads))


def test_it_crosses_processes_devices_and_files():
    for batch in (assembled(IMAGES, TOKENS), assembled(IMAGES, {4: TOKENS[4]}), assembled(IMAGES, {})):
        check_copies(batch)


def check_copies(batch):
    saved = io.BytesIO()
    torch.save(batch, saved)
    saved.seek(0)
    for other in (pickle.loads(pickle.dumps(batch)), torch.load(saved, weights_only=True), batch.to("cpu")):
        assert other.keys() == batch.keys()
        assert other["layout"] == batch["layout"]
        assert "pixel_values" not in batch or torch.equal(other["pixel_values"], batch["pixel_values"])
        for name in MediaLayout.__annotations__:
            assert np.array_equal(getattr(other["media"], name), getattr(batch["media"], name))
        assert other["media"].grids.shape == (len(batch["media"].ids), 3)


def test_presets_that_carry_no_images_refuse_them():
    media = media_of(QWEN, Loads(IMAGES))
    batch = assembled(IMAGES, TOKENS)
    takers = set()
    for preset in list_presets():
        if preset.takes_media:
            takers.add(preset.name)
            form = BatchFormat(preset=preset, media=media)
            assembler = BatchAssembler(14, **form.rows())
            inputs = preset.convert(assembler.assemble(block_of([[(3, 4), (4, 2), (5, 8)]]), IndexableSource(TOKENS)))
            assert torch.equal(inputs["pixel_values"], batch["pixel_values"])
            assert torch.equal(inputs["position_ids"], batch["position_ids"][:, :, :14])
            assert "media" not in inputs
            continue
        for refused in (lambda p: BatchFormat(preset=p, media=media), lambda p: p.convert(batch)):
            with pytest.raises(ValueError, match=rf"preset '{preset.name}' carries no media: take preset 'rows'"):
                refused(preset)
    assert takers == {"rows", "padding-free"}


def test_rows_that_stack_and_ranks_that_share_refuse_images():
    with pytest.raises(ValueError, match=r"media cannot be used with PackedBins.*use PackedDataset"):
        PackedBins("embedded:x", "x", TOKENS, batch=BatchFormat(media=media_of(QWEN, Loads(IMAGES))))
    with pytest.raises(ValueError, match="media cannot be shared by ranks"):
        context_batch(assembled(IMAGES, TOKENS), ContextRule(32, 2), 0)


def test_a_model_of_ones_own_is_described_by_hand():
    def grids(tensors):
        return np.tile([1, 1, 2], (len(tensors["pixels"]), 1))

    load = lambda ids: {i: {"pixels": np.full((1, 5), i), "name": "left alone"} for i in ids}  # noqa: E731
    media = Media(load=load, image_token_id=IMAGE, keys=("pixels",), grids=grids)
    batch = BatchAssembler(4, media=media).assemble(block_of([[(3, 4)]]), IndexableSource(TOKENS))
    assert batch["pixels"].tolist() == [[3] * 5]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3]]
    assert "name" not in batch
