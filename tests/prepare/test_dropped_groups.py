"""Groups that are too long: left out whole, counted, and kept in mind by later versions."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.flat_words import dry_run, prepare
from tests.prepare.grouped_rows import TABLE, by_group

from packhorse.dataset import open_prepared
from packhorse.prepare.groups.gathering import Grouped


def test_groups_that_are_too_long_are_left_out_whole(tmp_path):
    arguments = {"length_column": "n", "id_column": "id", "group_column": "prompt", "progress": False}
    with pytest.raises(ValueError, match=r"group 7 \(rows 2 to 5, 4 sequences\) has 12 tokens together, over max_seq"):
        prepare(lengths=TABLE, max_seq_len=11, output=tmp_path / "set", **arguments)
    assert not (tmp_path / "set").exists()
    arguments |= {"lengths": TABLE, "max_seq_len": 9, "over_length": "drop", "output": tmp_path / "set"}
    tried = dry_run(**arguments)
    manifest = prepare(**arguments)
    assert by_group(tmp_path / "set") == {40: [900, 3], 12: [77]}
    ledger = manifest.over_length
    assert tried.over_length == ledger
    assert (ledger.sequences, ledger.tokens, ledger.source_tokens) == (6, 22, 22)
    assert manifest.groups is not None
    assert manifest.groups.num_dropped == 2
    assert open_prepared(tmp_path / "set").over_length().tolist() == [[0, 2], [1, 8], [2, 1], [17, 9], [18, 1], [19, 1]]
    assert tried.stats.n_sequences == manifest.num_sequences == 3


@pytest.mark.parametrize("steps", [1, 2])
def test_a_group_that_was_left_out_is_no_new_one(tmp_path, steps):
    """As when all is prepared at once, where its rows would be apart."""
    arguments = {"length_column": "n", "group_column": "prompt", "max_seq_len": 10, "over_length": "drop"}
    arguments |= {"output": tmp_path / "set", "progress": False}
    assert prepare(lengths=TABLE, **arguments).groups.num_dropped == 1  # group 7
    if steps == 2:  # the version between keeps it in mind, and leaves out another
        manifest = prepare(lengths=pa.table({"n": [9, 2, 3], "prompt": [3, 3, 90]}), append=True, **arguments)
        assert (manifest.groups.num_dropped, manifest.groups.num_dropped_listed) == (2, 2)
        assert open_prepared(tmp_path / "set").dropped_groups().tolist() == [3, 7]
    before = open_prepared(tmp_path / "set").manifest
    later = pa.table({"n": [4, 2], "prompt": [91, 7]})
    for add in (dry_run, prepare):
        with pytest.raises(ValueError, match="group 7 was left out of set as too long, and more of its sequences come"):
            add(lengths=later, append=True, **arguments)
    assert open_prepared(tmp_path / "set").manifest == before
    with pytest.raises(ValueError, match="the rows of group 7 do not follow each other"):
        prepare(lengths=pa.concat_tables([TABLE.drop_columns("id"), later]), **arguments | {"output": tmp_path / "all"})


def test_groups_by_size_have_no_numbers_that_could_come_again(tmp_path):
    arguments = {"group_size": 2, "max_seq_len": 8, "over_length": "drop", "output": tmp_path / "set"}
    manifest = prepare(lengths=[3, 4, 9, 1], **arguments, progress=False)
    assert (manifest.groups.num_dropped, manifest.groups.num_dropped_listed) == (1, 0)
    assert not (tmp_path / "set" / "dropped_groups.npy").exists()
    manifest = prepare(lengths=[1, 1, 5, 5], append=True, **arguments, progress=False)
    assert (manifest.groups.num_dropped, manifest.groups.num_dropped_listed) == (2, 0)


def test_a_version_that_does_not_list_them_is_gone_on_with(tmp_path, monkeypatch):
    """As one that an earlier release prepared."""
    arguments = {"length_column": "n", "group_column": "prompt", "max_seq_len": 10, "over_length": "drop"}
    arguments |= {"output": tmp_path / "set", "progress": False}
    record = Grouped.record
    with monkeypatch.context() as patch:
        patch.setattr(Grouped, "record", lambda self, plan: replace(record(self, plan), num_dropped_listed=0))
        assert prepare(lengths=TABLE, **arguments).groups.num_dropped_listed == 0
    manifest = prepare(lengths=pa.table({"n": [9, 2, 3], "prompt": [3, 3, 90]}), append=True, **arguments)
    assert (manifest.groups.num_dropped, manifest.groups.num_dropped_listed) == (2, 1)
    assert open_prepared(tmp_path / "set").dropped_groups().tolist() == [3]
