"""`packhorse show`: folders and servers, text, JSON and HTML."""

import json
import re
from pathlib import Path

import pytest

from packhorse.client import connect

pytestmark = pytest.mark.shelf  # all of them run commands of the shelf

TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {f"w{n}": n for n in range(60_000)}, "unk_token": "w0"},
}


@pytest.fixture(params=["server", "folder"])
def dataset(request, corpus):
    """Arguments that name the dataset `rows`."""
    if request.param == "folder":
        return [corpus.root / "rows"]
    return ["rows", "--target", request.getfixturevalue("target")]


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(TOKENIZER))
    return path


def test_bins_are_drawn(packhorse, dataset, embedded):
    result = packhorse("show", *dataset, "--position", 5, "--limit", 2, "--seed", 3)
    assert result.exit_code == 0, result.output
    title, summary, *rows = result.stdout.splitlines()
    assert (title, summary[:22]) == ("rows, epoch 0, seed 3", "2 rows of 256 tokens: ")
    assert [row[:11] for row in rows] == ["position 5 ", "position 6 "]
    assert max(map(len, rows)) <= 140
    assert str(embedded.get_bins("rows", positions=[5], seed=3).ids[0]) in rows[0]


def test_json_and_html_hold_the_same_bins(packhorse, dataset, embedded, tmp_path):
    page = tmp_path / "bins.html"
    result = packhorse("show", *dataset, "--limit", 3, "--json", "--html", page)
    assert result.exit_code == 0, result.output
    ids = [s["id"] for row in json.loads(result.stdout)["rows"] for s in row["sequences"]]
    assert ids == embedded.get_bins("rows", positions=[0, 1, 2]).ids.tolist()
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert len(re.findall(r"sequence \d+: id", text)) == len(ids)


def test_a_page_needs_a_picture(packhorse, dataset, tmp_path):
    refused = packhorse("show", *dataset, "--id", "3", "--html", tmp_path / "none.html")
    assert refused.exit_code == 2
    assert "--id draws no picture" in refused.stderr


def test_a_step_is_drawn_and_its_documents_are_listed(packhorse, dataset, tmp_path):
    run = ["--step", 2, "--rank", 1, "--world-size", 2, "--batch-size", 3, "--epoch", 1]
    explained = json.loads(packhorse("show", *dataset, *run, "--json").stdout)
    assert len(explained["bins"]) == 3
    assert (explained["step"], explained["rank"], explained["world_size"]) == (2, 1, 2)
    page = tmp_path / "step.html"
    saved = packhorse("show", *dataset, *run, "--json", "--html", page)
    assert json.loads(saved.stdout) == explained
    assert page.read_text().startswith("<!doctype html>")
    text = packhorse("show", *dataset, *run).stdout
    assert "rows, epoch 1, seed 0: step 2 of " in text
    assert text.count("\nslot ") == 3


def test_a_cursor_says_where_to_draw(packhorse, dataset, tmp_path):
    at = json.loads(packhorse("show", *dataset, "--epoch", 1, "--seed", 3, "--position", 5, "--json").stdout)
    cursor = json.dumps({"digest": "x", "epoch": 1, "seed": 3, "position": 5})
    (tmp_path / "cursor.json").write_text(cursor)
    for said in (cursor, tmp_path / "cursor.json"):
        assert json.loads(packhorse("show", *dataset, "--cursor", said, "--json").stdout) == at
    assert "epoch, seed and position" in packhorse("show", *dataset, "--cursor", "{}").stderr
    refused = packhorse("show", *dataset, "--cursor", cursor, "--step", 1)
    assert refused.exit_code == 2
    assert "--cursor and --step exclude each other" in refused.stderr


def test_documents_are_told_with_their_words(packhorse, dataset, corpus, words):
    flags = ["--tokens", f"{corpus.megatron}.idx", "--tokenizer", words]
    result = packhorse("show", *dataset, "--step", 0, *flags, "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["bins"]
    for sequence in row["sequences"]:
        tokens = corpus.sequences[sequence["id"]]
        said = " ".join(f"w{token}" for token in tokens[:24].tolist())
        assert sequence["text"] == (said if len(said) <= 80 else said[:79] + "…")
        assert sequence["origin"].startswith(f"row {sequence['id']} of ")
    shown = packhorse("show", *dataset, "--limit", 1, *flags).stdout
    assert f"id {row['sequences'][0]['id']}, " in shown


def test_a_tokenizer_beside_its_tokens_is_found(packhorse, dataset, corpus, words, tmp_path):
    for suffix in (".bin", ".idx"):
        (tmp_path / f"x{suffix}").symlink_to(f"{corpus.megatron}{suffix}")
    (tmp_path / "x.tokenizer.json").symlink_to(words)
    flags = ["--step", 0, "--tokens", tmp_path / "x.idx", "--json"]
    (row,) = json.loads(packhorse("show", *dataset, *flags).stdout)["bins"]
    assert row["sequences"][0]["text"].startswith("w")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["show", "rows", "--position", 99_999], r"--position 99999 is beyond the epoch's end; give one below \d+"),
        (["show", "rows", "--tokenizer", "t.json"], "--tokenizer decodes tokens; give --tokens as well"),
        (["show", "rows", "--id-column", "x"], "--id-column belongs to --tokens"),
        (["show", "no/such/folder"], "no/such/folder is not a folder"),
        (["show", f"{Path(__file__).parent}"], r"is not a prepared folder: it has no manifest\.json"),
        (["show", "rows", "--step", 99_999], r"step must be in \[0, \d+\), got 99999"),
        (["show", "rows", "--step", 0, "--rank", 1], "rank must be"),
        (["show", "nothing", "--step", 0], "nothing"),
        (["show", "rows", "--step", 0, "--tokens", "nowhere.idx"], "nowhere"),
    ],
)
def test_what_cannot_be_shown_is_said(packhorse, corpus, arguments, why):
    result = packhorse(*arguments, "--target", f"embedded:{corpus.root}")
    assert result.exit_code in (1, 2)
    assert re.search(why, result.stderr)
    assert "Traceback" not in result.output


def test_a_dataset_of_the_working_folder_is_found(packhorse, corpus, monkeypatch):
    monkeypatch.chdir(corpus.root)
    with connect("embedded:.") as client:
        num_bins = client.get_dataset("few").num_bins
    result = packhorse("show", "few")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 2 + num_bins
