"""`packhorse datasets`: what is served."""

import json

from packhorse.client import connect


def test_datasets_are_listed_as_a_table_and_as_json(packhorse, target):
    with connect(target) as client:
        infos = client.list_datasets()
    table = packhorse("datasets", "--target", target).stdout.splitlines()
    assert table[0].split() == ["dataset", "digest", "max_seq_len", "sequences", "bins", "tokens", "efficiency"]
    assert [(line.split()[0], line.split()[1]) for line in table[1:]] == [(info.name, info.digest) for info in infos]
    listed = json.loads(packhorse("datasets", "--target", target, "--json").stdout)
    assert [(each["name"], each["num_bins"]) for each in listed] == [(info.name, info.num_bins) for info in infos]


def test_a_folder_is_listed_without_a_server(packhorse, corpus):
    assert "truncated" in packhorse("datasets", "--target", f"embedded:{corpus.root}").stdout
