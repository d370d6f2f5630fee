"""`packhorse mixture`: what is shown, and a stage that is appended."""

import json
import shutil

import pytest
from click.testing import CliRunner
from tests.server.mixtures import make_root

from packhorse.cli import main
from packhorse.dataset import StageEntry, render_stage


@pytest.fixture
def root(corpus, tmp_path):
    return make_root(corpus, tmp_path)


def run(*arguments):
    return CliRunner().invoke(main, ["mixture", *map(str, arguments)])


def test_stages_and_components_are_shown(root):
    result = run("show", "staged", "--target", f"embedded:{root}")
    assert result.exit_code == 0, result.output
    assert "500 bins of 384 tokens in an epoch of 3 components" in result.output
    assert "70.00%" in result.output
    content = json.loads(run("show", "staged", "--target", f"embedded:{root}", "--json").output)
    assert [stage["first_position"] for stage in content["stages"]] == [0, 710]
    assert [component["name"] for component in content["components"]] == ["rows", "named", "truncated"]
    result = run("show", "rows", "--target", f"embedded:{root}")
    assert (result.exit_code, "rows is a prepared dataset, not a mixture" in result.output) == (1, True)


def test_what_is_piped_is_whole(root):
    name = "long-name-" * 9
    shutil.copytree(root / "rows", root / name)
    (root / "wide.mixture.toml").write_text(render_stage(StageEntry(weights={name: 1})))
    target = ("--target", f"embedded:{root}")
    (component,) = json.loads(run("show", "wide", *target, "--json").output)["components"]
    shown = run("show", "wide", *target).output
    assert name in shown
    assert component["digest"] in shown
    assert "…" not in shown


@pytest.mark.shelf
@pytest.mark.parametrize("command", ["inspect", "verify"])
@pytest.mark.parametrize("given", ["staged", "staged.mixture.toml"])
def test_commands_for_one_folder_tell_what_to_do_with_a_mixture(root, command, given):
    result = CliRunner().invoke(main, [command, str(root / given)])
    assert result.exit_code == 1
    told = "staged is a mixture, a file that names prepared folders: give the folder of one component"
    assert told in result.output
    assert f"`packhorse mixture show staged --target embedded:{root}`" in result.output


def test_what_is_drawn_at_once_is_shown(root):
    shown = ("show", "staged", "--target", f"embedded:{root}")
    assert "in a row" not in run(*shown).output
    assert {stage["bins_per_draw"] for stage in json.loads(run(*shown, "--json").output)["stages"]} == {1}
    file = root / "staged.mixture.toml"
    text = (
        file.read_text().replace("epoch_bins = 500", "epoch_bins = 600").replace("until_bins = 710", "until_bins = 720")
    )
    file.write_text(f'draw = "steps"{text}')
    assert "drawn by steps: 6 consecutive bins are of one component" in run(*shown).output
    content = json.loads(run(*shown, "--json").output)
    assert [stage["bins_per_draw"] for stage in content["stages"]] == [6, 6]
    assert (content["max_seq_len"], content["num_bins"]) == (384, 600)


def test_a_stage_is_appended(root):
    arguments = ("append", "staged", "--data-root", root, "--from-position", 1200, "--weights")
    result = run(*arguments, "rows=60, truncated=40")
    assert result.exit_code == 0, result.output
    assert "staged: stage 2 begins at position 200 of epoch 2" in result.output
    assert "shares of bins: rows 60.00%, named 0.00%, truncated 40.00%" in result.output
    assert (root / "staged.mixture.toml").read_text().endswith("[[stages]]\nweights = {rows = 60, truncated = 40}\n")
    assert "| 2" in run("show", "staged", "--target", f"embedded:{root}").output.replace("│", "|")


def test_stages_are_replaced_and_taken_back(root):
    text = (root / "staged.mixture.toml").read_text()
    arguments = ("append", "staged", "--data-root", root, "--from-position")
    run(*arguments, 1200, "--weights", "rows=60,truncated=40")
    result = run(*arguments, 1100, "--replace", "--weights", "rows=1")
    assert "staged: stage 2 begins at position 100 of epoch 2" in result.output
    result = run(*arguments, 1000, "--replace")
    assert "staged: stage 1 begins at position 210 of epoch 1" in result.output
    assert (root / "staged.mixture.toml").read_text() == text
    assert "nothing changes" in run(*arguments, 1000, "--replace").output
    result = run(*arguments, 1000)
    assert "give --weights NAME=W,…, or --replace, which removes stages" in result.output
    result = run(*arguments, 700, "--replace", "--weights", "")
    assert "--weights '' is not NAME=WEIGHT" in result.output
    assert (root / "staged.mixture.toml").read_text() == text


@pytest.mark.parametrize(
    ("name", "position", "weights", "message"),
    [
        ("staged", 710, "rows=1", "position 710 is not after 710, where the last stage of staged begins"),
        ("staged", 900, "rows", "--weights 'rows' is not NAME=WEIGHT"),
        ("staged", 900, "rows=many", "--weights 'rows=many' is not NAME=WEIGHT"),
        ("staged", 900, "books=1", "no dataset is named 'books'"),
        ("staged", 900, "rows=0", "--weights are all 0: give a component a weight"),
        ("staged", 900, "rows=1,rows =2", "--weights names 'rows' twice; give each component one weight"),
        ("staged", 10**23, "rows=1", "--from-position must be an integer in [1, 4611686018427387904]"),
        ("other", 900, "rows=1", "--data-root has no mixture other"),
    ],
)
def test_a_wrong_stage_changes_nothing(root, name, position, weights, message):
    before = (root / "staged.mixture.toml").read_text()
    result = run("append", name, "--data-root", root, "--from-position", position, "--weights", weights)
    assert result.exit_code != 0
    assert message in result.output.replace("\n", " ")
    assert (root / "staged.mixture.toml").read_text() == before


@pytest.mark.shelf
def test_the_audit_counts_each_component_and_ids_are_located_with_it(root):
    target = ("--target", f"embedded:{root}", "staged", "--epoch", "1", "--seed", "7")
    result = CliRunner().invoke(main, ["audit", *target, "--world-size", "2"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.partition(":")[0] for line in lines if "its epochs" in line] == ["rows", "named", "truncated"]
    assert lines[-1] == "every sequence as often as the mixture says: yes"
    result = CliRunner().invoke(main, ["show", *target, "--json", "--id", "3"])
    assert {json.loads(line)["component"] for line in result.output.splitlines()} == {"rows", "truncated"}
    result = CliRunner().invoke(main, ["stream", *target, "--limit", "40"])
    assert {json.loads(line)["component"] for line in result.output.splitlines()} == {"rows", "named"}


def test_nothing_is_appended_to_a_mixture_that_a_dataset_hides(root):
    (root / "rows.mixture.toml").write_text(before := "[[stages]]\nweights = {named = 1}\n")
    result = run("append", "rows", "--data-root", root, "--from-position", 900, "--weights", "named=1")
    assert result.exit_code == 1
    assert (
        "--data-root also has a dataset rows, which is served instead of rows.mixture.toml; rename one" in result.output
    )
    assert (root / "rows.mixture.toml").read_text() == before
