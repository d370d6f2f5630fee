"""Groups that come later: a version of old and new ones, and what is no new group."""

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.flat_words import dry_run, prepare
from tests.prepare.grouped_rows import MEMBERS, TABLE, by_group, write_index

from packhorse.cli import main
from packhorse.dataset import open_prepared, versions_of

NEW = {"n": [4, 6, 20, 2, 3], "prompt": [90, 90, 8, 3, 3], "id": [5, 4, 200, 1000, 6]}
"""Rows that come later; group 8 is too long."""


@pytest.mark.parametrize("with_ids", [True, False])
def test_groups_are_added(tmp_path, with_ids):
    """What was appended in two steps is what is prepared at once."""
    arguments = {"length_column": "n", "group_column": "prompt", "max_seq_len": 16, "over_length": "drop"}
    arguments |= {"align": 2, "progress": False} | ({"id_column": "id"} if with_ids else {})
    table = pa.concat_tables([pa.table({"n": [17], "prompt": [1], "id": [321]}), TABLE])  # too long
    parts = [table, pa.table(NEW), pa.table({"n": [5, 5], "prompt": [2, 91], "id": [11, 12]})]
    for number, part in enumerate(parts):
        output = tmp_path / "grown"
        tried = dry_run(lengths=part, output=output, append=number > 0, **arguments)
        manifest = prepare(lengths=part, output=output, append=number > 0, **arguments)
        assert tried.stats.n_sequences == manifest.num_sequences
    whole = prepare(lengths=pa.concat_tables(parts), output=tmp_path / "whole", **arguments)
    assert manifest.version == 3
    assert manifest.digest == whole.digest
    assert (manifest.groups, manifest.over_length, manifest.own_tokens) == (
        whole.groups,
        whole.over_length,
        whole.own_tokens,
    )
    names = ["groups.npy", "members.npy", "pools.npy", "over_length.npy", "dropped_groups.npy"]
    names += ["member_order.npy"] * with_ids
    for name in names:
        assert (tmp_path / "grown" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert [version.number for version in versions_of(tmp_path / "grown")] == [3, 2, 1]
    assert by_group(tmp_path / "grown" / "versions" / "1").keys() == MEMBERS.keys()
    assert CliRunner().invoke(main, ["verify", str(tmp_path / "grown"), "--all-versions"]).exit_code == 0


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ({"prompt": [50, 90]}, {}, "group 50 is in set already, and more of its sequences come: only whole"),
        ({"prompt": [90, 40]}, {}, "group 40 is in set already"),
        ({"prompt": [90, 90]}, {"group_column": None}, "it was planned by column 'prompt', and the input is without"),
        ({"prompt": [90, 90]}, {"group_column": None, "group_size": 2}, "and the input is by every 2 rows"),
        ({"prompt": [90, 90], "id": [77, 5]}, {}, "id 77 is in set already and comes again"),
        ({"prompt": [90, 91], "n": [13, 14]}, {"over_length": "error"}, "group 90 .* has 13 tokens together"),
    ],
)
def test_what_is_no_new_group_is_not_added(tmp_path, rows, changes, message):
    arguments = {"length_column": "n", "id_column": "id", "group_column": "prompt", "max_seq_len": 12}
    arguments |= {"output": tmp_path / "set", "progress": False}
    before = prepare(lengths=TABLE, **arguments)
    rows = pa.table({"n": [1, 2], "id": [5000, 5001]} | rows)
    with pytest.raises(ValueError, match=message):
        prepare(lengths=rows, append=True, **arguments | changes)
    assert open_prepared(tmp_path / "set").manifest == before
    plain = {**arguments, "group_column": None, "output": tmp_path / "plain"}
    prepare(lengths=TABLE, **plain)
    with pytest.raises(ValueError, match="it was planned without groups, and the input is by column 'prompt'"):
        prepare(lengths=TABLE, append=True, **plain | {"group_column": "prompt"})


def test_groups_of_a_token_file_that_grew(tmp_path):
    output, groups = tmp_path / "set", tmp_path / "groups.npy"
    arguments = {"groups": groups, "max_seq_len": 30, "output": output, "progress": False}

    def grow(numbers, lengths, append=True):
        np.save(groups, np.array(numbers))
        return prepare(write_index(tmp_path / "rows", lengths), append=append, **arguments)

    grow([4, 4, 2], [5, 6, 7], append=False)
    with pytest.raises(ValueError, match=r"group 2 is in set already, and rows\.idx adds sequences to it"):
        grow([4, 4, 2, 2], [5, 6, 7, 1])
    with pytest.raises(ValueError, match="does not hold what set was prepared from"):
        grow([4, 5, 2, 3], [5, 6, 7, 1])
    with pytest.raises(ValueError, match="does not hold what set was prepared from"):
        grow([4, 2, 2, 3], [5, 6, 7, 1])  # a group begins earlier, and the last one ends where it did
    with pytest.raises(ValueError, match="does not hold what set was prepared from"):
        grow([4, 4, 2, 3], [5, 6, 8, 1])
    manifest = grow([4, 4, 2, 3, 3], [5, 6, 7, 1, 1])
    assert manifest.version == 2
    assert by_group(output) == {4: [0, 1], 2: [2], 3: [3, 4]}
