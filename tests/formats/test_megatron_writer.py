"""Tokens and their loss mask as two Megatron pairs: contents, agreement with the plain writer, both or none."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packhorse.formats import MegatronTokens, MegatronWriter
from packhorse.formats.megatron import MaskedTokenWriter

sequences = st.lists(
    st.lists(st.tuples(st.integers(0, 69_999), st.booleans()), min_size=1, max_size=20), min_size=1, max_size=8
)


@given(sequences=sequences, is_wide=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_both_pairs_read_back(tmp_path: Path, sequences: list[list[tuple[int, bool]]], is_wide: bool) -> None:
    vocab_size = 70_000 if is_wide else 60_000
    rows = [([token % vocab_size for token, _ in row], [mask for _, mask in row]) for row in sequences]
    with (
        MaskedTokenWriter(tmp_path / "x.idx", vocab_size=vocab_size, overwrite=True) as writer,
        MegatronWriter(tmp_path / "plain", vocab_size=vocab_size, overwrite=True) as plain,
    ):
        for tokens, mask in rows:
            writer.append(tokens, mask)
            plain.append(tokens)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"x{suffix}").read_bytes() == (tmp_path / f"plain{suffix}").read_bytes()
    masks = MegatronTokens(tmp_path / "x.loss_mask")
    assert masks.dtype == np.uint8
    assert [masks.read(i).tolist() for i in range(len(masks))] == [[int(flag) for flag in mask] for _, mask in rows]
    assert masks.index.document_indices.tolist() == list(range(len(rows) + 1))
    assert (len(writer), writer.num_tokens) == (len(rows), plain.num_tokens)
    assert writer.num_trained_tokens == sum(sum(mask) for _, mask in rows)


def test_chunks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, chunk in (("x", 1 << 20), ("y", 3)):
        monkeypatch.setattr("packhorse.formats.megatron.layout.CHUNK_ELEMENTS", chunk)
        with MaskedTokenWriter(tmp_path / name, vocab_size=9) as writer:
            for length in range(1, 9):
                writer.append([length] * length, [True] * length)
    for suffix in (".idx", ".loss_mask.idx"):
        assert (tmp_path / f"x{suffix}").read_bytes() == (tmp_path / f"y{suffix}").read_bytes()


@pytest.mark.parametrize("existing", ["x.bin", "x.idx", "x.loss_mask.bin", "x.loss_mask.idx"])
def test_one_file_that_is_there_stops_all_four(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_bytes(b"old")
    with pytest.raises(FileExistsError, match=existing):
        MaskedTokenWriter(tmp_path / "x", vocab_size=9)
    assert [path.name for path in tmp_path.iterdir()] == [existing]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with MaskedTokenWriter(tmp_path / "x", vocab_size=9) as writer:
            writer.append([1], [True])
            writer.append([9], [True])

    with pytest.raises(ValueError, match=r"sequence 1 holds the token id 9; with vocab_size 9 ids are in \[0, 9\)"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tokens", "mask", "match"),
    [
        ([], [], "a sequence is a list of at least one"),
        ([1.5], [True], "a sequence is a list of at least one"),
        ([1, 2], [True], "2 tokens and a loss mask of bool of shape"),
        ([1], [1], "a loss mask is one bool for each token"),
    ],
)
def test_what_is_no_sequence_with_its_mask_is_refused(
    tmp_path: Path, tokens: list[int], mask: list[bool], match: str
) -> None:
    with pytest.raises(ValueError, match=match), MaskedTokenWriter(tmp_path / "x", vocab_size=9) as writer:
        writer.append(tokens, mask)
