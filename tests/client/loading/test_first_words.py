"""What users of PyTorch try first: words of other loaders, one state for two iterators, scripts without a guard."""

import subprocess
from pathlib import Path
from typing import get_args

import pytest
from tests import scripts

from packhorse.client import (
    BatchFormat,
    LoaderOptions,
    MemoryDatasets,
    PackedBins,
    PackedDataset,
    Run,
    Topology,
    create_packed_dataloader,
)
from packhorse.client.options import Balance, BalanceName
from packhorse.client.presets import PresetName
from packhorse.client.presets.registry import PRESETS
from packhorse.formats import MegatronTokens, MegatronWriter

ROWS = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
TARGET = MemoryDatasets({"rows": ROWS}, max_seq_len=4)


def open_loader(**options):
    return create_packed_dataloader(TARGET, "rows", ROWS, batch_size=1, num_workers=0, device="cpu", **options)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("shuffle", "shuffled already, by seed="),
        ("drop_last", "remainder='drop'"),
        ("pin_memory", "device="),
        ("collate_fn", "batches come whole"),
        ("sampler", "PackedBins"),
        ("rank", r"LoaderOptions\(rank="),
        ("seeds", "did you mean seed="),
        ("qqq", "it has .*batch_size"),
    ],
)
def test_a_word_of_another_loader_gets_a_hint(word: str, hint: str) -> None:
    for make in (create_packed_dataloader, PackedDataset, PackedBins):
        if make is PackedDataset and word == "rank":
            continue
        wanted = hint if make is not PackedBins or word != "qqq" else "it has "
        with pytest.raises(TypeError, match=f"{make.__name__} got an unexpected keyword argument '{word}': .*{wanted}"):
            make(TARGET, "rows", ROWS, **{word: 1})


def test_a_key_that_is_missing_names_the_one_that_is_meant() -> None:
    batch = next(iter(PackedDataset(TARGET, "rows", ROWS, batch_size=1)))
    with pytest.raises(KeyError, match=r"this batch has no 'input_id' \(did you mean 'input_ids'\?\); it has .*labels"):
        batch["input_id"]
    assert batch.get("input_id") is None
    assert "input_id" not in batch


def test_a_cursor_within_a_checkpoint_is_found() -> None:
    with open_loader(seed=1) as loader:
        cursor = next(iter(loader))["cursor"]
        with pytest.raises(ValueError, match=r"is under 'data': load_state_dict\(state\['data'\]\)"):
            loader.load_state_dict({"model": {}, "data": cursor})
        loader.load_state_dict(cursor)


def test_a_loader_shows_where_it_stands() -> None:
    with open_loader(seed=1) as loader:
        batches = iter(loader)
        assert "epoch 0, next position 0" in repr(loader)
        next(batches)
        next(batches)
        assert "epoch 0, next position 2" in repr(loader)
        list(batches)
        assert "epoch 1, next position 0" in repr(loader)
    dataset = PackedDataset(TARGET, "rows", ROWS, batch_size=1)
    next(iter(dataset))
    assert "next position 1" in repr(dataset)


def test_names_are_known_to_type_checkers() -> None:
    assert set(get_args(PresetName)) == set(PRESETS)
    assert set(get_args(BalanceName)) == {str(each) for each in Balance}


def test_half_of_a_pair_of_files_says_so(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "corpus.idx", vocab_size=100) as writer:
        writer.append([1, 2])
    (tmp_path / "corpus.bin").rename(tmp_path / "elsewhere.bin")
    with pytest.raises(FileNotFoundError, match=r"corpus.idx is there and .*corpus.bin is not.*a pair"):
        MegatronTokens(tmp_path / "corpus.idx")
    with pytest.raises(FileNotFoundError, match=r"elsewhere.bin is there and .*elsewhere.idx is not"):
        MegatronTokens(tmp_path / "elsewhere.bin")


def test_two_iterators_over_one_dataset_do_not_share_a_state() -> None:
    dataset = PackedDataset(TARGET, "rows", ROWS, batch_size=1, seed=1)
    expected = [batch["ids"].tolist() for batch in PackedDataset(TARGET, "rows", ROWS, batch_size=1, seed=1)]
    first, second = iter(dataset), iter(dataset)
    next(first)
    assert next(second)["ids"].tolist() == expected[0]
    with pytest.raises(RuntimeError, match=r"ended by a later one over the same dataset.*for each iterator"):
        next(first)
    assert [batch["ids"].tolist() for batch in second] == expected[1:]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"dataset": Run("rows", seed=7), "seed": 0}, "seed"),
        ({"dataset": Run("rows", seed=7), "seed": 7}, "seed"),
        ({"topology": Topology(batch_size=1, balance="micro-step"), "balance": "none"}, "balance"),
        ({"topology": Topology(batch_size=2), "batch_size": 1}, "batch_size"),
        ({"loader": LoaderOptions(num_workers=0), "num_workers": 2}, "num_workers"),
        ({"batch": BatchFormat(preset="rows"), "preset": "rows"}, "preset"),
    ],
)
def test_what_is_given_twice_is_noticed_although_it_is_the_default(words, name) -> None:
    given = {"dataset": "rows", **words}
    if "topology" not in words:
        given["batch_size"] = 1
    with pytest.raises(ValueError, match=f"{name} is given twice"):
        create_packed_dataloader(TARGET, given.pop("dataset"), ROWS, **given)


SCRIPT = """
import sys
from packhorse.client import LoaderOptions, connect, create_packed_dataloader
{before}
with connect(sys.argv[1]) as client:
    print("datasets", len(client.list_datasets()))
loader = create_packed_dataloader(sys.argv[1], "few", sys.argv[2], batch_size=1, seed=1, num_workers={workers})
print("read", next(iter(loader))["ids"].tolist())
"""


def run_script(served, corpus, before: str = "", workers: int = 1) -> subprocess.CompletedProcess[str]:
    text = SCRIPT.format(before=before, workers=workers)
    if before:
        head, _, body = text.partition(before)
        text = head + before + "\n    " + body.strip().replace("\n", "\n    ") + "\n"
    return scripts.run(text, served.target, corpus.megatron)


def test_a_script_without_a_guard_is_refused_before_it_starts_again(running_server, corpus) -> None:
    done = run_script(running_server, corpus)
    assert done.returncode == 1
    assert done.stdout.count("datasets") == 1
    assert done.stderr.count("Traceback") == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "PackhorseError" in last
    for part in ("script.py, line", "forkserver", "has used gRPC", 'if __name__ == "__main__":', "num_workers=0"):
        assert part in last


def test_a_script_with_a_guard_reads_after_a_call(running_server, corpus) -> None:
    done = run_script(running_server, corpus, 'if __name__ == "__main__":')
    assert done.returncode == 0, done.stderr
    assert "read" in done.stdout


@pytest.mark.parametrize(
    "end", ["for batch in loader: break", "it = iter(loader.dataset); next(it)", "it = iter(loader); next(it)"]
)
def test_leaving_a_served_loader_says_nothing_at_the_end(running_server, corpus, end: str) -> None:
    script = (
        "import sys\nfrom packhorse.client import create_packed_dataloader\n"
        "loader = create_packed_dataloader(sys.argv[1], 'few', sys.argv[2], batch_size=1, num_workers=0)\n" + end + "\n"
    )
    done = scripts.run(script, running_server.target, corpus.megatron)
    assert done.returncode == 0
    assert done.stderr == ""
