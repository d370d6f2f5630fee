"""`packhorse redact`: what it writes, what it refuses, and what the other commands then tell."""

import re

import pytest
from click.testing import CliRunner
from tests.server.mixtures import make_root

from packhorse.cli import main


@pytest.fixture
def root(corpus, tmp_path):
    return make_root(corpus, tmp_path / "root")


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def redact(root, *arguments):
    return run("redact", "--data-root", root, *arguments)


@pytest.mark.shelf
def test_sequences_are_masked_and_replaced_and_an_audit_tells_of_them(root, tmp_path):
    (tmp_path / "ids.txt").write_text("14\n15 # both\n")
    first = redact(root, "rows", "--ids", "3,14", "--reason", "private")
    assert first.exit_code == 0, first.output
    assert first.output.startswith("rows.takedown.toml: 2 ids masked\nredactions in force: 1, the last with digest ")
    second = redact(root, "rows", "--ids-file", tmp_path / "ids.txt", "--replace", 0, "--seed", 5, "--from-position", 0)
    assert second.output.startswith("rows.takedown.toml: 2 ids replaced by token 0\nredactions in force: 2")
    assert (root / "rows.takedown.toml").read_text() == (
        '[[redact]]\nids = [3, 14]\nreason = "private"\n\n'
        '[[redact]]\nids = [14, 15]\naction = "replace"\ntoken = 0\nseed = 5\nfrom_position = 0\n'
    )
    audit = run("audit", "--target", f"embedded:{root}", "rows", "--world-size", 3)
    assert audit.exit_code == 0, audit.output
    lines = audit.output.splitlines()
    assert "1 sequences masked from the loss by a takedown" in lines
    assert "2 sequences replaced by a takedown" in lines
    assert any(line.endswith(": 2 ids masked: private") for line in lines)
    assert any(line.endswith("replaced by token 0, in the run of seed 5 from position 0 on") for line in lines)
    assert lines[-1] == "exactly once: yes"


@pytest.mark.shelf
def test_of_a_mixture_it_is_a_component_s(root):
    assert redact(root, "staged", "--ids", ",".join(map(str, range(99))), "--component", "rows").exit_code == 0
    audit = run("audit", "--target", f"embedded:{root}", "staged", "--epoch", 3)
    assert (audit.exit_code, ": 99 ids of rows masked\n" in audit.output) == (0, True)
    masked = re.search("([0-9,]+) sequences masked from the loss by a takedown", audit.output).group(1)
    of_components = {line.partition(":")[0]: line for line in audit.output.splitlines() if "its epochs" in line}
    assert of_components["rows"].endswith(f"; {masked} masked from the loss")
    assert not any("masked" in of_components[name] for name in ("named", "truncated"))


@pytest.mark.shelf
def test_an_audit_counts_what_a_file_skips(root):
    (root / "rows.takedown.toml").write_text('[[skip]]\npositions = "3:7"\nepoch = 0\n')
    audit = run("audit", "--target", f"embedded:{root}", "rows", "--skip", "5:6")
    assert audit.exit_code == 0, audit.output
    assert "left out on purpose by --skip" in audit.output
    assert "left out on purpose by rows.takedown.toml" in audit.output
    assert "in 3 bins" in audit.output
    show = run("show", "rows", "--target", f"embedded:{root}", "--position", 3, "--limit", 1, "--skip", "5:6")
    assert show.exit_code == 0, show.output


@pytest.mark.shelf
def test_an_audit_of_an_epoch_that_a_file_skips_whole_says_so(root):
    (root / "rows.takedown.toml").write_text('[[skip]]\npositions = "0:99999"\nepoch = 2\n')
    audit = run("audit", "--target", f"embedded:{root}", "rows", "--epoch", 2)
    assert audit.exit_code == 1
    assert "nothing was audited: rows.takedown.toml leaves out all bins of epoch 2; shorten a [[skip]]" in audit.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rows"], "give --ids or --ids-file"),
        (["rows", "--ids", "1", "--seed", 3], "--seed and --from-position belong together"),
        (["rows", "--ids", "x"], "x is not a whole number, so it is a key, and there are no keys"),
        (["rows", "--ids", "1,2000,2001"], "rows has no ids 2000, 2001"),
        (["other", "--ids", "1"], "no dataset is named 'other'"),
        (["rows", "--ids", "1", "--component", "rows"], "rows is not a mixture; leave out --component"),
        (["staged", "--ids", "1"], "staged is a mixture: give --component, one of rows, named, truncated"),
        (["staged", "--ids", "1", "--component", "row"], "--component row is none of them"),
        (["staged", "--ids", "9999999", "--component", "named"], "named has no ids 9999999"),
    ],
)
def test_what_is_refused_writes_nothing(root, arguments, message):
    result = redact(root, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output or message in str(result.exception)
    assert not list(root.glob("*.takedown.toml"))


def test_a_dataset_s_own_folder_is_no_data_root(root):
    result = run("redact", "rows", "--ids", "1", "--data-root", root / "rows")
    assert (result.exit_code, "give the folder that it is in" in result.output) == (2, True)


def test_an_edited_file_is_checked(root):
    (root / "rows.takedown.toml").write_text("[[redact]]\nids = [1, 2]\n[[redact]]\nids_file = 'more.txt'")
    (root / "more.txt").write_text("3\n")
    result = redact(root, "rows", "--check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "rows.takedown.toml: 2 redactions, 0 skips" in result.stdout
    (root / "more.txt").write_text("3\n2000\n")
    result = redact(root, "rows", "--check")
    assert result.exit_code == 1
    assert "redact[1]: 2 ids of rows, 1 of them missing" in result.stdout
    assert result.stderr == "WRONG: redact[1]: rows has no ids 2000\n"
    (root / "staged.takedown.toml").write_text("[[redact]]\nids = [1]")
    result = redact(root, "staged", "--check")
    assert (result.exit_code, "redact[0].component must be one of rows, named, truncated" in result.stderr) == (1, True)
    result = redact(root, "rows", "--check", "--ids", 3)
    assert (result.exit_code, "leave --ids and --ids-file out" in result.stderr) == (2, True)
