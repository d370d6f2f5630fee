"""The guide's table of seqpack's names: it has each of them, and what it calls equal is."""

from collections import Counter
from dataclasses import fields
from itertools import chain
from pathlib import Path

import numpy as np
import seqpack

from packhorse.epoch import materialize_epoch
from packhorse.packing import PackingStats, length_histogram_from_lengths, pack_length_histogram

GUIDE = Path(__file__).parents[2] / "client" / "guides" / "library.md"
LENGTHS = np.random.default_rng(3).integers(1, 200, 300).tolist()


def test_every_name_of_seqpack_is_in_the_table():
    table = GUIDE.read_text(encoding="utf-8").partition("## Coming from seqpack")[2]
    assert [name for name in seqpack.__all__ if f"`{name}" not in table] == []


def test_statistics_differ_in_the_percentiles_of_templates_only():
    bins = seqpack.heap_pack_sequences(LENGTHS, 256)
    templates = seqpack.pack_length_histogram(Counter(LENGTHS), 256)
    of_bins = PackingStats.from_bins(bins, LENGTHS, 256), seqpack.PackingStats.from_bins(bins, LENGTHS, 256)
    of_templates = PackingStats.from_templates(templates, 256), seqpack.PackingStats.from_templates(templates, 256)
    for field in fields(seqpack.PackingStats):
        ours, theirs = (getattr(each, field.name) for each in of_bins)
        assert np.isclose(ours, theirs, rtol=1e-12), field.name
        if "fullness" not in field.name:
            assert getattr(of_templates[0], field.name) == getattr(of_templates[1], field.name)


def test_an_epoch_has_seqpacks_sequences_in_other_bins():
    counts, pools = length_histogram_from_lengths(LENGTHS)
    templates = pack_length_histogram(counts, 256)
    ours, theirs = (
        list(materialize(templates, pools, seed=1)) for materialize in (materialize_epoch, seqpack.materialize_epoch)
    )
    assert sorted(chain(*ours)) == sorted(chain(*theirs)) == list(range(len(LENGTHS)))
    assert ours != theirs
