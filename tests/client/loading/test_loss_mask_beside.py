"""The loss mask that lies beside a token file: found by every way to name the tokens, refused if it is of others."""

import warnings
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packhorse.client import (
    BatchFormat,
    LoaderOptions,
    MemoryDatasets,
    PackedBins,
    PackedDataset,
    as_token_source,
    create_packed_dataloader,
)
from packhorse.client.sources import TokenSourceError
from packhorse.formats import MegatronWriter, write_flat_tokens
from packhorse.formats.megatron import MaskedTokenWriter
from packhorse.prepare import prepare

TOKENS = [[1, 2, 3, 4], [5, 6, 7], [8, 9]]
MASKS = [[0, 0, 1, 1], [0, 0, 1], [0, 1]]
TRAINED, ALL = 4, 6  # the first token of a sequence is never a target
TARGET = MemoryDatasets({"sft": TOKENS}, max_seq_len=9)


def write_chats(path: Path, masks: list[list[int]] = MASKS, tokens: list[list[int]] = TOKENS) -> Path:
    with MaskedTokenWriter(path, vocab_size=100, overwrite=True) as writer:
        for row, mask in zip(tokens, masks, strict=True):
            writer.append(row, np.array(mask, dtype=np.bool_))
    return path


def targets(tokens, **options) -> int:
    form = BatchFormat(**options) if options else None
    dataset = PackedDataset(TARGET, "sft", tokens, batch_size=1, rank=(0, 1), batch=form)
    return sum(int((batch["labels"] != -100).sum()) for batch in dataset)


def test_every_way_to_name_the_tokens_finds_the_mask(tmp_path: Path) -> None:
    trainers = pytest.importorskip("packhorse.trainers")
    path = write_chats(tmp_path / "sft.idx")
    for name in (path, str(path), tmp_path / "sft.bin", tmp_path / "sft", path.as_uri(), as_token_source(path)):
        assert targets(name) == TRAINED
    assert targets(path, preset="padding-free") == TRAINED
    assert targets(path, shift_labels=True) == TRAINED
    bins = PackedBins(TARGET, "sft", path)
    assert sum(int((row["labels"] != -100).sum()) for row in bins) == TRAINED
    with create_packed_dataloader(TARGET, "sft", path, batch_size=1, num_workers=0, device="cpu") as loader:
        assert sum(int((batch["labels"] != -100).sum()) for batch in loader) == TRAINED
    data = trainers.PackedData(TARGET, "sft", path, batch_size=1, num_workers=0)
    with data.open(preset="rows", loader=LoaderOptions(device="cpu")) as loader:
        assert sum(int((batch["labels"] != -100).sum()) for batch in loader) == TRAINED


def test_a_flat_file_has_a_mask_beside_it_too(tmp_path: Path) -> None:
    write_flat_tokens(tmp_path / "sft.bin", TOKENS, dtype="uint16")
    assert targets(tmp_path / "sft.bin") == ALL
    write_flat_tokens(tmp_path / "sft.loss_mask.bin", MASKS, dtype="uint16")
    for name in (tmp_path / "sft.bin", tmp_path / "sft.bin.boundaries", (tmp_path / "sft.bin").as_uri()):
        assert targets(name) == TRAINED


def test_whoever_wants_no_mask_says_so_and_is_told_once(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "sft.idx")
    with pytest.warns(UserWarning, match=r"every token of .*sft.bin is trained on.*sft.loss_mask.bin.*loss_mask=None"):
        assert targets(path, loss_mask=None) == ALL
    given = [[1] * 4, [0] * 3, [0] * 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert targets(path, loss_mask=given) == 3  # what is given counts
        assert targets(TOKENS) == ALL


def test_tokens_of_chats_without_their_mask_are_told_once(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "sft.idx")
    for ending in ("bin", "idx"):
        (tmp_path / f"sft.loss_mask.{ending}").unlink()
    assert targets(path) == ALL  # nothing says that they are chats
    (tmp_path / "sft.unused.json").write_text("{}")
    pq.write_table(pa.table({"input_ids": TOKENS, "assistant_masks": MASKS}), tmp_path / "sft.parquet")
    said = r"every token of .*sft.bin is trained on, prompts too, although .*sft.unused.json says .* chats or pairs"
    for name in (path, path.as_uri()):
        with pytest.warns(UserWarning, match=said):
            assert targets(name) == ALL
    table = as_token_source(tmp_path / "sft.parquet", column="input_ids")
    with pytest.warns(UserWarning, match=r"it has a column 'assistant_masks': give the mask as loss_mask="):
        assert targets(table) == ALL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert targets(path, loss_mask=None) == targets(table, loss_mask=None) == ALL


def test_a_mask_lies_beside_tokens_in_an_object_store_too(tmp_path: Path) -> None:
    write_chats(tmp_path / "sft.idx")
    for file in tmp_path.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/beside/{file.name}", file.read_bytes())
    assert targets("memory://beside/sft.idx") == TRAINED
    assert targets("memory://beside/sft.bin") == TRAINED


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (TOKENS[:2], "holds 2 sequences, and .*sft.bin 3"),
        ([[1, 2, 3, 4], [5, 6], [8, 9]], "sequence 1 holds 2 values, and that of .*sft.bin 3 tokens"),
    ],
)
def test_a_mask_of_other_tokens_is_refused(tmp_path: Path, tokens: list[list[int]], message: str) -> None:
    path = write_chats(tmp_path / "sft.idx")
    write_chats(tmp_path / "old.idx", [[1] * len(row) for row in tokens], tokens)
    for ending in ("bin", "idx"):
        (tmp_path / f"old.loss_mask.{ending}").rename(tmp_path / f"sft.loss_mask.{ending}")
    for name in (path, path.as_uri()):
        with pytest.raises(TokenSourceError, match=message + ".*loss_mask=None"):
            targets(name)
    with pytest.raises(TokenSourceError):
        targets(path, loss_mask=tmp_path / "sft.loss_mask.idx")
    (tmp_path / "sft.loss_mask.bin").unlink()
    with pytest.raises(
        TokenSourceError, match=r"half of a loss mask.*loss_mask.idx is there, and .*loss_mask.bin is not"
    ):
        targets(path)


def test_components_have_masks_of_their_own(tmp_path: Path) -> None:
    write_chats(tmp_path / "chat.idx")
    with MegatronWriter(tmp_path / "web.idx", vocab_size=100) as writer:
        writer.append([7, 7, 7])
    for name, rows in (("chat", TOKENS), ("web", [[7, 7, 7]])):
        prepare(lengths=[len(row) for row in rows], max_seq_len=9, output=tmp_path / "data" / name)
    stages = "epoch_bins = 2\n[[stages]]\nweights = {chat = 1, web = 1}\n"
    (tmp_path / "data" / "mix.mixture.toml").write_text(stages)
    tokens = {"chat": tmp_path / "chat.idx", "web": tmp_path / "web.idx"}
    for mask, wanted in (("auto", TRAINED + 2), ({"web": [[0, 0, 1]]}, TRAINED + 1), ({"chat": None}, ALL + 2)):
        form = BatchFormat(loss_mask=mask)
        dataset = PackedDataset(f"embedded:{tmp_path}/data", "mix", tokens, batch_size=2, rank=(0, 1), batch=form)
        [batch] = dataset
        assert int((batch["labels"] != -100).sum()) == wanted


def test_a_mask_is_no_tokens(tmp_path: Path) -> None:
    write_chats(tmp_path / "sft.idx")
    mask = tmp_path / "sft.loss_mask.idx"
    with pytest.raises(ValueError, match=r"sft.loss_mask.idx is a loss mask, not tokens: prepare .*/sft.idx"):
        prepare(mask, max_seq_len=9, output=tmp_path / "data")
    with pytest.raises(TokenSourceError, match=r"is a loss mask, not tokens: give .*/sft.idx as tokens"):
        targets(mask)
