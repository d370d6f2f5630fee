"""What every preset declares, whatever it makes."""

import pickle

import pytest
import torch

from packhorse.client.loading.workers.start import context_of_workers
from packhorse.client.presets import (
    Preset,
    get_preset,
    jax_preset,
    list_presets,
    llama_factory_preset,
    megatron_preset,
    padding_free_preset,
)

NAMES = (
    "jax",
    "llama-factory",
    "maxtext",
    "megatron",
    "megatron-lm",
    "open-instruct",
    "padding-free",
    "rows",
    "torchtune",
    "torchtune-0.6",
    "trl",
)
OF_TREES = "trl_async"
"""Made by the shelf, where its tests are."""

BINS = [[[11, 12, 13], [21, 22]], [[31, 32, 33, 34, 35, 36, 37, 38]], [], [[41]]]
SHIFTED_BY_THE_BATCH = {"jax", "maxtext", "megatron", "megatron-lm", "torchtune"}
ONE_ROW = {"open-instruct", "padding-free", "trl"}


def test_there_are_the_presets_of_the_documentation():
    assert tuple(preset.name for preset in list_presets()) == (*NAMES, OF_TREES)
    assert {preset.name for preset in list_presets() if preset.shift_labels} == SHIFTED_BY_THE_BATCH | {OF_TREES}
    assert {preset.name for preset in list_presets() if preset.flatten} == ONE_ROW
    with pytest.raises(ValueError, match=r"no preset 'verl'; there are jax, .*, trl, trl_async"):
        get_preset("verl")


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_says_what_it_does(name):
    preset = get_preset(name)
    assert preset.labels.startswith("shifted" if preset.shift_labels else "unshifted")
    shown = str(preset)
    for words in (f"{name}: {preset.trainer}", f"labels: {preset.labels}", f"padding: {preset.padding}"):
        assert words in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_left_host_memory_is_refused(name, assemble):
    batch = assemble(BINS, 8, get_preset(name))
    for key, value in batch.items():
        if isinstance(value, torch.Tensor):
            batch[key] = value.to("meta")  # as "cuda" where there is none
    with pytest.raises(ValueError, match=rf"{name}.*this one is on meta; give the preset to the dataset"):
        get_preset(name).convert(batch)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_another_form_is_refused(name, assemble):
    preset = get_preset(name)
    wrong_shift = assemble(BINS, 8, preset, shift_labels=not preset.shift_labels)
    with pytest.raises(ValueError, match=rf"{name}.*shift_labels={preset.shift_labels}"):
        preset.convert(wrong_shift)
    if preset.flatten:
        with pytest.raises(ValueError, match="flatten=True"):
            preset.convert(assemble(BINS, 8, preset, flatten=False))
        with pytest.raises(ValueError, match="flatten=True"):
            preset.convert(assemble(BINS[:1], 8, preset, flatten=False))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_another_form_is_refused_where_labels_look_alike(name, assemble):
    """Of a chat neither the first tokens nor the last are predicted."""
    preset = get_preset(name)
    masks = [[0, 0, 1, 1, 0]]
    batch = assemble([[[1, 2, 3, 4, 5]]], 8, preset, loss_masks=masks, shift_labels=not preset.shift_labels)
    with pytest.raises(ValueError, match=rf"{name}.*shift_labels={preset.shift_labels}"):
        preset.convert(batch)
    preset.convert(assemble([[[1, 2, 3, 4, 5]]], 8, preset, loss_masks=masks))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bins", [BINS, [[], []], []], ids=["some", "empty bins", "no bins"])
def test_the_batch_stays_as_it_is(name, bins, assemble, as_lists):
    preset = get_preset(name)
    batch = assemble(bins, 8, preset)
    before = as_lists({key: value for key, value in batch.items() if key != "layout"})
    preset.convert(batch)
    assert as_lists({key: value for key, value in batch.items() if key != "layout"}) == before


@pytest.mark.parametrize(
    "preset",
    [
        *map(get_preset, NAMES),
        jax_preset("maxtext"),
        llama_factory_preset(pad_token_id=7),
        padding_free_preset(),
        megatron_preset(),
    ],
    ids=lambda preset: preset.name,
)
def test_presets_go_to_other_processes(preset, assemble, as_lists):
    """As PackedDataset's pickle takes them to spawned workers."""
    batch = assemble(BINS, 8, preset)
    copy = pickle.loads(pickle.dumps(preset))
    assert copy.name == preset.name
    assert as_lists(copy.convert(batch)) == as_lists(preset.convert(batch))


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_a_dataset_have_the_keys_and_the_cursor(name, make_dataset, load, assemble, as_lists):
    preset = get_preset(name)
    keys = {*preset.convert(assemble(BINS, 8, preset)), "cursor"}
    alone = list(load(make_dataset(preset=name, batch_size=90)))
    dataset = make_dataset(preset=name, batch_size=90)
    in_workers = list(
        load(dataset, 2, multiprocessing_context=context_of_workers(None))
    )  # gRPC is in use here: no fork
    assert len(alone) == len(in_workers) > 1
    for a, b in zip(alone, in_workers, strict=True):
        assert a.keys() == b.keys() == keys
        assert as_lists(dict(a)) == as_lists(dict(b))


def test_unknown_names_of_jax_are_refused():
    with pytest.raises(ValueError, match="names must be one of grain, maxtext; got 'seqio'"):
        jax_preset("seqio")


def test_a_preset_of_ones_own(make_dataset):
    preset = Preset(
        name="mine",
        trainer="my loop",
        shift_labels=True,
        labels="shifted",
        flatten=False,
        padding="as it comes",
        build=only_tokens,
    )
    batch = next(iter(make_dataset("few", preset=preset)))
    assert set(batch) == {"tokens", "cursor"}
    with pytest.raises(ValueError, match=r"flatten=True contradicts preset 'mine'"):
        make_dataset("few", preset=preset, flatten=True)


def only_tokens(batch):
    return {"tokens": batch["input_ids"]}
