"""From JSON lines with URLs to a redaction by URL that a batch heeds, by commands alone."""

import json

import pytest

from packhorse.client import PackedDataset, connect

pytestmark = pytest.mark.shelf  # all of them run commands of the shelf

NUM = 60
URL = "https://example.org/{}?a=1,2#part"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, packhorse):
    folder = tmp_path_factory.mktemp("end")
    for name in ("web", "more"):
        rows = [{"text": "" if number % 20 == 5 else f"{name} {number} " * (number % 7 + 1)} for number in range(NUM)]
        lines = [json.dumps({**row, "url": URL.format(number)}) for number, row in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
        prefix = folder / name
        arguments = ("--input", f"{prefix}.jsonl", "--output", prefix, "--id-column", "url", "--vocab-size", 300)
        result = packhorse("tokenize", *arguments, "--train-tokenizer")
        assert result.exit_code == 0, result.stderr
        result = packhorse(
            "prepare", "--input", f"{prefix}.idx", "--max-seq-len", 128, "--output", folder / "data" / name
        )
        assert result.exit_code == 0, result.stderr
    (folder / "data" / "mixed.mixture.toml").write_text("epoch_bins = 40\n[[stages]]\nweights = {web = 1, more = 1}\n")
    return folder


@pytest.fixture(autouse=True)
def without_takedowns(folder):
    yield
    for path in (folder / "data").glob("*.takedown.toml"):
        path.unlink()


def masked_keys(folder, name):
    """Keys of the sequences of an epoch's batches that have no target."""
    target = f"embedded:{folder / 'data'}"
    ids = []
    dataset = PackedDataset(target, name, folder / f"{name}.idx", batch_size=2, seed=1, rank=(0, 1))
    for batch in dataset:
        layout, labels = batch["layout"], batch["labels"].view(-1)
        for number, start, length in zip(
            batch["ids"].tolist(), layout.starts.tolist(), layout.lengths.tolist(), strict=True
        ):
            if (labels[start : start + length] == -100).all():
                ids.append(number)
    with connect(target) as client:
        return sorted(client.keys(name, ids))


def test_a_url_is_redacted_and_batches_heed_it(folder, packhorse):
    taken = [URL.format(number) for number in (40, 7)]
    assert masked_keys(folder, "web") == []
    flags = [part for url in taken for part in ("--ids", url)]
    result = packhorse("redact", folder / "data" / "web", *flags, "--reason", "asked for")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("web.takedown.toml: 2 keys masked\n")
    assert (folder / "data" / "web.takedown.toml").read_text() == (
        f'[[redact]]\nids = ["{taken[0]}", "{taken[1]}"]\nreason = "asked for"\n'
    )
    assert masked_keys(folder, "web") == sorted(taken)
    audit = packhorse("audit", folder / "data" / "web")
    assert audit.exit_code == 0
    assert "2 sequences masked from the loss by a takedown" in audit.stdout
    digest = result.stdout.split()[-1]
    assert f"redaction {digest}: 2 ids masked: asked for" in audit.stdout


def test_keys_and_ids_that_say_the_same_have_one_digest(folder, packhorse):
    web = folder / "data" / "web"
    by_key = packhorse("redact", web, "--ids", URL.format(3), "--ids", "9").stdout.split()[-1]
    (folder / "data" / "web.takedown.toml").unlink()
    assert packhorse("redact", web, "--ids", "3,9").stdout.split()[-1] == by_key


def test_of_a_mixture_a_key_is_its_component_s(folder, packhorse):
    mixture = folder / "data" / "mixed.mixture.toml"
    result = packhorse("redact", mixture, "--component", "more", "--ids", URL.format(4))
    assert result.stdout.startswith("mixed.takedown.toml: 1 key of more masked")
    audit = packhorse("audit", mixture, "--epoch", 1)
    lines = {line.partition(":")[0]: line for line in audit.stdout.splitlines()}
    assert "masked from the loss" in lines["more"]
    assert "masked" not in lines["web"]


def test_a_file_of_keys(folder, packhorse, tmp_path):
    ids_file = tmp_path / "gone.txt"
    ids_file.write_text(f"# asked for on Monday\n{URL.format(1)}\n0, 2 # by number\n{URL.format(59)}\n")
    result = packhorse("redact", "web", "--data-root", folder / "data", "--ids-file", ids_file)
    assert result.stdout.startswith("web.takedown.toml: 2 ids and 2 keys masked")
    with (folder / "data" / "web.takedown.toml").open("a") as file:
        file.write('[[redact]]\nids = ["https://example.org/none", 7]\n')
    checked = packhorse("redact", folder / "data" / "web", "--check")
    assert checked.exit_code == 1
    assert "redact[1]: 1 id and 1 key of web, 1 of them missing" in checked.stdout
    assert checked.stderr == "WRONG: redact[1]: web has no keys https://example.org/none\n"


def test_locate_and_explain_speak_in_keys(folder, packhorse, json_lines):
    web = folder / "data" / "web"
    by_key, by_id = json_lines(packhorse("show", web, "--json", "--id", URL.format(10), "--id", "9").stdout)[::-1]
    assert by_key == by_id | {"id": by_key["id"]}
    assert (by_key["key"], by_key["id"]) == (URL.format(10), 9)  # the sixth document is empty
    missing = packhorse("show", web, "--id", "https://example.org/none")
    assert missing.exit_code == 1
    assert "not in the dataset" in missing.stdout
    (explained,) = json_lines(packhorse("show", web, "--step", 0, "--json").stdout.replace("\n", ""))
    for sequence in explained["bins"][0]["sequences"]:
        assert packhorse("show", web, "--json", "--id", sequence["key"]).stdout.startswith(f'{{"id": {sequence["id"]},')
    shown = packhorse("show", web, "--tokens", folder / "web.idx", "--limit", 1).stdout
    assert "https://example.org/" in shown


def test_tokenizing_again_without_keys_leaves_none_behind(folder, packhorse, tmp_path):
    arguments = ["tokenize", "--input", folder / "web.jsonl", "--output", tmp_path / "x", "--train-tokenizer"]
    arguments += ["--vocab-size", 300]
    assert packhorse(*arguments, "--id-column", "url").exit_code == 0
    assert (tmp_path / "x.keys.arrow").exists()
    assert packhorse(*arguments).exit_code == 1
    assert packhorse(*arguments, "--overwrite").exit_code == 0
    assert not (tmp_path / "x.keys.arrow").exists()
