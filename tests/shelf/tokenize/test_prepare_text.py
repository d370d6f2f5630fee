"""`packhorse prepare --tokenizer`: text to a dataset that holds its tokens, in one command."""

import json
import os
import re

import numpy as np
import pytest
from click.testing import CliRunner
from tests.shelf.tokenize.small_tokenizers import byte_level, saved

from packhorse.cli import main
from packhorse.client import BatchFormat, PackedDataset
from packhorse.dataset import open_prepared
from packhorse.formats import MegatronTokens
from packhorse.prepare import prepare

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }} {% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tokenizer in `model`, and files of chats, preferences and text."""
    monkeypatch.chdir(tmp_path)
    saved(byte_level(), tmp_path / "model", chat_template=TEMPLATE)
    chats = [[("user", f"What is {n} + 2?"), ("assistant", "the fox " * (n + 1))] for n in range(9)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in chats]
    write("chats.jsonl", rows)
    write("pairs.jsonl", [{"prompt": "q ", "chosen": "fox " * n, "rejected": "dog"} for n in range(1, 6)])
    write("text.jsonl", [{"url": f"u{n}", "text": "lazy dog " * (n + 1)} for n in range(7)])
    return tmp_path


def write(name, rows):
    with open(name, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def run(*arguments, command="prepare"):
    return CliRunner().invoke(main, [command, *map(str, arguments)])


def prepared(*arguments, source="chats.jsonl", output="sets/d", max_seq_len=256):
    result = run(
        "--input", source, "--tokenizer", "model", "--max-seq-len", max_seq_len, "--output", output, *arguments
    )
    assert result.exit_code == 0, result.output
    return result.output


def left(root):
    return sorted(path.name for path in (root / "sets").iterdir())


@pytest.mark.parametrize("source", ["chats.jsonl", "text.jsonl"])
def test_one_command_does_what_two_do(folder, source):
    printed = prepared(source=source)
    assert "create_packed_dataloader('sets/d', batch_size=8)" in printed
    assert left(folder) == ["d"]
    assert run("--input", source, "--tokenizer", "model", "--output", "apart", command="tokenize").exit_code == 0
    manifest = prepare("apart.idx", output="two", max_seq_len=256)
    assert open_prepared("sets/d").manifest.digest == manifest.digest
    for ours, theirs in zip(PackedDataset("sets/d", batch_size=1), PackedDataset("two", batch_size=1), strict=True):
        assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
        assert ours["labels"].tolist() == theirs["labels"].tolist()


def test_the_folder_may_be_moved_with_its_tokens(folder):
    prepared()
    before = [batch["labels"].tolist() for batch in PackedDataset("sets/d", batch_size=1)]
    (folder / "sets").rename(folder / "elsewhere")
    assert [batch["labels"].tolist() for batch in PackedDataset("elsewhere/d", batch_size=1)] == before


def test_options_of_tokenize_are_taken_and_mistyped_ones_refused(folder):
    prepared("--id-column", "url", "--no-eos", source="text.jsonl")
    assert open_prepared("sets/d").keys.of(np.array([3])) == ["u3"]
    assert run("--input", "x.idx", "--max-seq-len", 9, "--output", "o", "--no-eos").exit_code == 2
    for wrong, said in (
        ("--no-eoss", "--no-eos"),
        ("--length-column=n", "--length-column"),
        ("--dry-run", "--dry-run"),
    ):
        refused = run("--input", "chats.jsonl", "--tokenizer", "model", "--max-seq-len", 9, "--output", "o", wrong)
        assert refused.exit_code == 2, refused.output
        assert said in refused.output
    assert not (folder / "o").exists()


def test_both_answers_of_a_preference_share_a_bin(folder):
    prepared(source="pairs.jsonl", max_seq_len=64)
    manifest = open_prepared("sets/d").manifest
    assert (manifest.groups.num_groups, manifest.num_sequences) == (5, 10)


def test_answers_of_a_preference_may_share_their_prompt(folder):
    write("pairs.jsonl", [{"prompt": "the fox " * 9, "chosen": "dog" * n, "rejected": "q"} for n in range(1, 6)])
    prepared("--group-size", 2, "--share-prefixes", "input", source="pairs.jsonl")
    manifest = open_prepared("sets/d").manifest
    assert manifest.shares_prefixes
    assert manifest.groups.shared_tokens > 0.4 * manifest.own_tokens
    assert manifest.inputs.tokens.path == "tokens/d.idx"
    assert left(folder) == ["d"]


def test_the_last_line_says_how_to_train_without_last_tokens(folder):
    told = prepared("--extra-tokens", -1)
    assert "train        create_packed_dataloader('sets/d', batch_size=8, batch=BatchFormat(shift_labels=True))" in told
    assert "9 tokens are predicted and not fed" in told
    dataset = PackedDataset("sets/d", batch_size=1, rank=(0, 1), batch=BatchFormat(shift_labels=True))
    held = MegatronTokens("sets/d/tokens/d.idx")
    assert sum(batch["cu_seqlens"][-1].item() for batch in dataset) == sum(len(held.read(n)) - 1 for n in range(9))


def test_tokens_are_not_made_twice_when_only_preparing_failed(folder):
    call = ["--input", "chats.jsonl", "--tokenizer", "model", "--output", "sets/d"]
    refused = run(*call, "--max-seq-len", 20)
    assert refused.exit_code == 1
    assert "over-length" in refused.output
    assert "the tokens stay in" in refused.output
    assert left(folder) == [".d.tokens"]
    made = (folder / "sets/.d.tokens/tokens/d.bin").stat().st_mtime_ns
    assert "those of the call before" in prepared("--over-length", "truncate", max_seq_len=20)
    assert (folder / "sets/d/tokens/d.bin").stat().st_mtime_ns == made
    assert left(folder) == ["d"]


def test_tokens_of_a_file_that_changed_are_made_again(folder):
    call = ["--input", "text.jsonl", "--tokenizer", "model", "--output", "sets/d", "--max-seq-len", 8]
    assert run(*call).exit_code == 1
    write("text.jsonl", [{"text": "dog"}, {"text": "fox"}])
    assert run(*call).exit_code == 0
    assert open_prepared("sets/d").manifest.num_sequences == 2


def test_tokens_whose_record_a_crash_cut_are_made_again(folder):
    call = ["--input", "text.jsonl", "--tokenizer", "model", "--output", "sets/d", "--max-seq-len"]
    assert run(*call, 8).exit_code == 1
    os.truncate("sets/.d.tokens/made.json", 20)
    assert run(*call, 256).exit_code == 0
    assert left(folder) == ["d"]


def test_an_output_that_is_taken_is_refused_before_tokenizing(folder):
    prepared()
    refused = run("--input", "text.jsonl", "--tokenizer", "model", "--max-seq-len", 64, "--output", "sets/d")
    assert refused.exit_code == 1
    assert "--overwrite" in refused.output
    assert left(folder) == ["d"]
    prepared("--overwrite", source="text.jsonl")
    assert open_prepared("sets/d").manifest.num_sequences == 7
    assert left(folder) == ["d"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--extra-tokens", -2], "--extra-tokens"),
        (["--align", 300], "align 300"),
        (["--keep", "tail"], "--keep tail"),
        (["--tokens-per-rank", 100], "--tokens-per-rank 100"),
        (["--group-size", 2, "--over-length", "truncate"], "--over-length truncate would cut sequences"),
        (["--group-size", 2, "--max-sequences-per-bin", 4], "does not go with groups"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_tokenizing(folder, wrong, named):
    refused = run(
        *("--input", "chats.jsonl", "--tokenizer", "model", "--max-seq-len", 256, "--output", "sets/d"), *wrong
    )
    assert refused.exit_code == 1
    assert re.search(named, refused.output), refused.output
    assert not (folder / "sets").exists()


def test_new_text_is_appended_with_its_tokens_and_the_old_version_keeps_its_own(folder):
    prepared(source="text.jsonl")
    write("more.jsonl", [{"text": "fox"}, {"text": "dog"}])
    prepared("--append", source="more.jsonl")
    new = open_prepared("sets/d").manifest
    assert (new.version, new.num_sequences) == (2, 9)
    assert len(MegatronTokens("sets/d/tokens/d.idx")) == 9
    assert len(MegatronTokens("sets/d/versions/1/tokens/d.idx")) == 7
    ids = [number for batch in PackedDataset("sets/d", batch_size=1) for number in batch["ids"].tolist()]
    assert sorted(ids) == list(range(9))


def test_an_append_with_another_plan_is_refused_before_tokenizing(folder):
    prepared()
    call = ["--input", "text.jsonl", "--tokenizer", "model", "--output", "sets/d", "--append"]
    refused = run(*call, "--max-seq-len", 128, "--align", 4)
    assert refused.exit_code == 1
    assert "max_seq_len was 256 and is 128; align was 1 and is 4" in refused.output
    assert left(folder) == ["d"]


def test_append_needs_the_tokens_of_the_dataset(folder):
    prepare(lengths=[3, 4], output="sets/d", max_seq_len=8)
    refused = run("--input", "text.jsonl", "--tokenizer", "model", "--append", "--max-seq-len", 8, "--output", "sets/d")
    assert refused.exit_code == 2
    assert "does not hold them" in refused.output


def test_an_earlier_version_goes_with_its_tokens(folder):
    prepared(source="text.jsonl")
    write("more.jsonl", [{"text": "fox"}])
    prepared("--append", source="more.jsonl")
    assert run("sets/d", "--prune", 1, command="inspect").exit_code == 0
    assert not list((folder / "sets/d").glob("versions/*"))
    prepared("--overwrite", source="chats.jsonl")
    assert open_prepared("sets/d").manifest.num_sequences == 9
