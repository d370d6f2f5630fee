"""Folders are written whole or not at all."""

from pathlib import Path

import pytest

from packhorse.dataset import written_whole
from packhorse.dataset.layout import parse_counts, parse_templates, render_counts, render_templates


def test_nothing_is_at_the_output_until_all_is_written(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    with written_whole(output) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "file").write_text("new")
        assert partial.parent == output.parent
        assert partial.name.startswith(".")
        assert not output.exists()
    assert (output / "sub" / "file").read_text() == "new"
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_nothing_is_left_and_the_old_stays(tmp_path: Path, error: type[BaseException]) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "old").write_text("old")

    def write_half() -> None:
        with written_whole(output, overwrite=True) as partial:
            (partial / "file").write_text("new")
            raise error

    with pytest.raises(error):
        write_half()
    assert list(tmp_path.iterdir()) == [output]
    assert [path.name for path in output.iterdir()] == ["old"]


def test_an_existing_output_is_replaced_only_when_asked(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("a file")
    with pytest.raises(FileExistsError, match=r"out exists.*--overwrite"), written_whole(output):
        pass
    assert output.read_text() == "a file"
    with written_whole(output, overwrite=True) as partial:
        (partial / "file").write_text("new")
    assert [path.name for path in output.iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [output]


def test_json_files_survive_a_round_trip() -> None:
    counts = {7: 2, 30: 1, 4: 9}
    assert render_counts(counts) == b'{"4":9,"7":2,"30":1}\n'
    assert parse_counts(render_counts(counts)) == counts
    templates = {(7, 4): 2, (30,): 1, (7,): 3, (7, 4, 1): 1}
    assert render_templates(templates) == b"[[[30],1],[[7,4,1],1],[[7,4],2],[[7],3]]\n"
    assert parse_templates(render_templates(templates)) == templates


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b'{"a":1}', b'{"1":"2"}', b'{"1":1.5}', b'{"1":null}'])
def test_other_counts_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_counts(data)


@pytest.mark.parametrize("data", [b"", b"{}", b"1", b"[1]", b"[[1,2]]", b"[[[1],1.5]]", b'[[["1"],1]]', b"[[[1],1,1]]"])
def test_other_templates_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_templates(data)
