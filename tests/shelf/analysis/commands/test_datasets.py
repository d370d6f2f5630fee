"""`packhorse inspect`: what is served."""

import json
from types import SimpleNamespace

from packhorse.analysis.commands import served as datasets
from packhorse.client import connect
from packhorse.client.errors import AccessDeniedError


def test_datasets_are_listed_as_a_table_and_as_json(packhorse, target):
    with connect(target) as client:
        infos = client.list_datasets()
    table = packhorse("inspect", "--target", target).stdout.splitlines()
    assert table[0].split() == [
        "dataset",
        "digest",
        "max_seq_len",
        "sequences",
        "bins",
        "tokens",
        "efficiency",
        "streams",
    ]
    assert [(line.split()[0], line.split()[1]) for line in table[1:]] == [(info.name, info.digest) for info in infos]
    listed = json.loads(packhorse("inspect", "--target", target, "--json").stdout)
    assert [(each["name"], each["num_bins"]) for each in listed] == [(info.name, info.num_bins) for info in infos]


def test_open_streams_are_counted_for_each_digest(packhorse, target, monkeypatch):
    with connect(target) as client:
        digest = client.get_dataset("rows").digest
    streams = [SimpleNamespace(dataset="rows", digest=each) for each in (digest, f"{digest}+skip=1", "other")]
    answer = [SimpleNamespace(streams=streams[:1]), SimpleNamespace(streams=streams[1:])]
    monkeypatch.setattr(datasets, "ask_activity", lambda *_, **__: answer)
    listed = json.loads(packhorse("inspect", "--target", target, "--json").stdout)
    assert {each["name"]: sum(each["open_streams"].values()) for each in listed if each["name"] in ("few", "rows")} == {
        "few": 0,
        "rows": 2,
    }
    (row,) = (line for line in packhorse("inspect", "--target", target).stdout.splitlines() if "rows" in line)
    assert row.split()[-1] == "2"


def test_who_may_not_ask_for_streams_gets_the_list_without(packhorse, target, monkeypatch):
    def refuse(*_, **__):
        raise AccessDeniedError("this token is not for GetActivity")

    monkeypatch.setattr(datasets, "ask_activity", refuse)
    assert "streams" not in packhorse("inspect", "--target", target).stdout
    assert "open_streams" not in json.loads(packhorse("inspect", "--target", target, "--json").stdout)[0]


def test_a_folder_is_listed_without_a_server(packhorse, corpus):
    assert "truncated" in packhorse("inspect", "--target", f"embedded:{corpus.root}").stdout
