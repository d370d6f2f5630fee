"""A sample of rows: no row twice, every row as likely as any other, and as many as were asked for."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packhorse.tokenize import RowSample, sample_rows


def texts_of(sample: RowSample) -> list[str]:
    found = []
    for path in sample.files:
        if path.endswith(".parquet"):
            found += pq.read_table(path)["text"].to_pylist()
        else:
            found += [json.loads(line)["text"] for line in Path(path).read_text().splitlines()]
    return found


def write(folder: Path, texts: list[str], kind: str) -> None:
    """Writes texts into two files of unequal size, the first with a third of them."""
    for number, part in enumerate((texts[: len(texts) // 3], texts[len(texts) // 3 :])):
        if kind == "parquet":
            pq.write_table(pa.table({"text": part}), folder / f"{number}.parquet", row_group_size=170)
        else:
            (folder / f"{number}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in part))


def drawn(source: Path, target: Path, num_rows: int, seed: int = 0) -> RowSample:
    target.mkdir()
    return sample_rows(source, num_rows, target, seed=seed)


@pytest.fixture(params=["jsonl", "parquet"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source = tmp_path / "corpus"
    source.mkdir()
    lengths = np.random.default_rng(0).choice([3, 400], 3000)
    write(source, [f"{row}:" + "x" * length for row, length in enumerate(lengths.tolist())], request.param)
    return source


def test_no_row_comes_twice_and_order_stays(corpus: Path, tmp_path: Path) -> None:
    for seed in range(3):
        sample = drawn(corpus, tmp_path / str(seed), 900, seed)
        rows = [int(text.partition(":")[0]) for text in texts_of(sample)]
        assert rows == sorted(set(rows))
        assert len(rows) == sample.num_rows
        assert 750 < len(rows) < 1050
        assert sample.about_rows == pytest.approx(3000, rel=0.15)


def test_long_rows_are_as_likely_as_short_ones(corpus: Path, tmp_path: Path) -> None:
    times = np.zeros(3000)
    for seed in range(25):
        for text in texts_of(drawn(corpus, tmp_path / str(seed), 900, seed)):
            times[int(text.partition(":")[0])] += 1
    whole = texts_of(drawn(corpus, tmp_path / "whole", 10**6))
    is_long = np.array([len(text) > 300 for text in whole])
    assert times[is_long].mean() == pytest.approx(times[~is_long].mean(), rel=0.1)
    assert times[:1500].mean() == pytest.approx(times[1500:].mean(), rel=0.1)
    assert times.min() > 0


def test_a_small_input_is_taken_as_a_whole(corpus: Path, tmp_path: Path) -> None:
    sample = drawn(corpus, tmp_path / "sample", 10**6)
    assert (sample.share, sample.num_rows, sample.about_rows) == (1.0, 3000, 3000)
    assert [int(text.partition(":")[0]) for text in texts_of(sample)] == list(range(3000))


def test_files_that_cannot_be_cut_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a text")
    with pytest.raises(ValueError, match=r"x\.txt cannot be sampled.*JSON lines"):
        sample_rows(tmp_path / "x.txt", 10, tmp_path)


def test_rows_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("")
    assert drawn(tmp_path / "x.jsonl", tmp_path / "sample", 10) == RowSample([], 0, 1.0)
