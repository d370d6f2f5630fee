"""An alignment that costs much is spoken of, with what else would do; one that costs little is not."""

import warnings

import numpy as np
import pytest
from click.testing import CliRunner

from packhorse.cli import main
from packhorse.dataset import PlanOptions
from packhorse.prepare import prepare

LENGTHS = np.clip(np.random.default_rng(0).lognormal(np.log(800) - 0.5, 1, 2_000), 1, 8_000).astype(np.int64)


def test_fp8_alignment_of_each_sequence_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"align=128 adds 8\.\d% of padding: .*2·CP.*total_multiple_of=128"):
        manifest = prepare(lengths=LENGTHS, output=tmp_path / "a", plan=PlanOptions(max_seq_len=8_192, align=128))
    assert manifest.num_sequences == len(LENGTHS)


@pytest.mark.parametrize("options", [{"align": 16}, {"align": 8}, {}, {"extra_tokens": 100}])
def test_what_costs_little_or_is_no_alignment_is_not(options, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(lengths=LENGTHS, output=tmp_path / "a", plan=PlanOptions(max_seq_len=8_192, **options))


def test_the_command_says_it_in_flags(tmp_path):
    np.save(tmp_path / "lengths.npy", LENGTHS)
    arguments = ["prepare", "--input", tmp_path / "lengths.npy", "--output", tmp_path / "a", "--max-seq-len", 8_192]
    done = CliRunner().invoke(main, [*map(str, arguments), "--align", "128"])
    assert done.exit_code == 0
    assert "warning: --align 128 adds 8." in done.stderr
    assert "UserWarning" not in done.output


@pytest.mark.parametrize(("align", "is_warned"), [(1, True), (4, True), (8, False), (24, False)])
def test_rooms_that_zigzag_cannot_divide_are_warned_of(align, is_warned, tmp_path, recwarn):
    plan = PlanOptions(max_seq_len=8_192, tokens_per_rank=2_048, align=align)
    prepare(lengths=LENGTHS, output=tmp_path / "a", plan=plan)
    said = [str(each.message) for each in recwarn if "zigzag" in str(each.message)]
    assert bool(said) == is_warned
    assert not said or "prepare with align=8" in said[0]
