"""Corpora: what `--tokens` takes, and corpora that are not those of the plan."""

import numpy as np
import pytest

from packhorse.formats import MegatronWriter
from packhorse.prepare import prepare
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.mixtures import Mixtures

LENGTHS = np.random.default_rng(2).integers(1, 40, 500)


def written(path, lengths):
    with MegatronWriter(path, vocab_size=1000) as writer:
        for number, length in enumerate(lengths.tolist()):
            writer.append(np.full(length, number))
    return f"{path}.idx"


@pytest.fixture
def datasets(tmp_path):
    """A dataset of lengths alone, whose manifest names no tokens."""
    prepare(lengths=LENGTHS, output=tmp_path / "sets" / "corpus", max_seq_len=64)
    return Mixtures(Catalog(tmp_path / "sets"))


def message_of(corpora, dataset):
    with pytest.raises(ServiceError) as raised:
        corpora.of(dataset)
    return raised.value.message


def test_the_right_tokens_pass_the_check(datasets, tmp_path):
    corpora = Corpora.parse([f"corpus={written(tmp_path / 'right', LENGTHS)}"])
    corpora.check_all([datasets.get("corpus")])
    assert corpora.facts(datasets.get("corpus")) == {
        "has_tokens": True,
        "has_loss_mask": False,
        "token_dtype": "uint16",
    }
    assert not corpora.troubles()


def test_one_length_that_differs_withdraws_them_and_says_where(datasets, tmp_path):
    lengths = LENGTHS.copy()
    lengths[321] += 1
    corpora = Corpora.parse([f"corpus={written(tmp_path / 'wrong', lengths)}"])
    corpora.check_all([datasets.get("corpus")])
    assert "sequence 321: the plan says" in message_of(corpora, datasets.get("corpus"))
    assert corpora.facts(datasets.get("corpus")) == {}
    assert list(corpora.troubles()) == [("corpus", "corpus")]


def test_a_corpus_that_is_mended_is_opened_again(datasets, tmp_path, monkeypatch):
    corpora = Corpora.parse([f"corpus={tmp_path / 'later.idx'}"])
    assert message_of(corpora, datasets.get("corpus")) == (
        "the tokens of 'corpus' are not served: they cannot be opened"
    )
    written(tmp_path / "later", LENGTHS)
    assert "cannot be opened" in message_of(corpora, datasets.get("corpus"))  # not asked again at once
    monkeypatch.setattr("packhorse.server.datasets.corpora.time.monotonic", lambda: 1e9)
    corpora.of(datasets.get("corpus"))
    assert not corpora.troubles()


def test_no_path_leaves_the_server(datasets, tmp_path):
    path = tmp_path / "secret.idx"
    path.write_bytes(b"no index")
    corpora = Corpora.parse([f"corpus={path}"])
    assert "secret" not in message_of(corpora, datasets.get("corpus"))


def test_a_file_names_many(datasets, tmp_path):
    right = written(tmp_path / "right", LENGTHS)
    (tmp_path / "tokens.toml").write_text(f'[tokens]\ncorpus = "{right}"\n')
    assert Corpora.parse([str(tmp_path / "tokens.toml")]).of(datasets.get("corpus"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["corpus"], "tokens must be NAME=PATH, a .toml file with a table"),
        (["=x.idx"], "must be NAME=PATH"),
        (["a=x.idx", "a=y.idx"], "names the dataset a twice"),
        (["missing.toml"], r"tokens missing.toml cannot be read"),
    ],
)
def test_options_that_say_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Corpora.parse(options)


def test_a_table_of_something_else_is_refused(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text("[tokens]\na = 1\n")
    with pytest.raises(ValueError, match=r"must have a table \[tokens\]"):
        Corpora.parse([str(path)])
