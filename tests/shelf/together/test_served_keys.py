"""Keys over the wire: from a dataset and from a mixture of which some components have keys, embedded and remote."""

import numpy as np
import pyarrow as pa
import pytest
from tests.flat_words import prepare
from tests.servers import Server

from packhorse.client import PackhorseError, Topology, connect
from packhorse.client.errors import InvalidRequestError
from packhorse.pictures import explain_step
from packhorse.proof import EpochOfStreams

MIXTURE = "epoch_bins = 90\n[[stages]]\nweights = {urls = 2, plain = 1, names = 1}\n"
NUM = 120


def key_of(name, number):
    return {"urls": f"https://example.org/{number}", "names": f"document {number + 50}", "plain": ""}[name]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    random = np.random.default_rng(5)
    for name in ("urls", "names", "plain"):
        lengths = random.integers(1, 60, NUM)
        lengths[7] = 150
        columns = {"length": lengths, "url": [key_of(name, number) for number in range(NUM)]}
        options = {} if name == "plain" else {"id_column": "url"}
        over_length = "split" if name == "urls" else "drop"
        prepare(
            lengths=pa.table(columns),
            length_column="length",
            max_seq_len=64,
            over_length=over_length,
            progress=False,
            output=folder / name,
            **options,
        )
    (folder / "mixed.mixture.toml").write_text(MIXTURE)
    return folder


@pytest.fixture(scope="module")
def clients(root):
    server = Server(root, log=root.parent / "keys.log")
    with connect(server.target) as remote, connect(f"embedded:{root}") as embedded:
        yield remote, embedded
    server.stop()


def test_keys_are_located_as_their_ids_are(clients):
    topology = Topology(world_size=2, batch_size=3)
    for client in clients:
        by_id = client.locate("urls", seed=3, ids=[3, 7, 119], topology=topology)
        asked = [key_of("urls", number) for number in (3, 7, 119)]
        assert client.locate("urls", seed=3, keys=asked, topology=topology) == by_id
        assert [location.key for location in by_id] == [asked[0], *[asked[1]] * 3, asked[2]]
        both = client.locate("urls", seed=3, ids=[119], keys=["nothing", asked[0]], topology=topology)
        assert both[0] == by_id[-1]
        assert both[2] == by_id[0]
        assert (both[1].id, both[1].found, both[1].key) == (-1, False, "nothing")
        (dropped,) = client.locate("names", keys=[key_of("names", 7)])
        assert (dropped.id, dropped.found, dropped.key) == (7, False, key_of("names", 7))


def test_a_mixture_s_keys_are_those_of_their_components(clients):
    for client in clients:
        assert [each.key_column for each in client.get_dataset("mixed").components] == ["url", "", "url"]
        found = client.locate("mixed", seed=1, keys=[key_of("names", 3), key_of("urls", 3), "nothing"])
        assert next(location.component for location in found if location.key == key_of("names", 3)) == "names"
        assert {(location.id, location.component) for location in found} == {(3, "names"), (3, "urls"), (-1, "")}
        whole = client.locate("mixed", seed=1, ids=[3])
        assert [location for location in whole if location.component in ("names", "urls")] == sorted(
            (location for location in found if location.id == 3), key=lambda location: location.component == "names"
        )
        assert all(location.key == key_of(location.component, 3) for location in whole)


def test_ids_of_a_batch_become_keys(clients):
    for client in clients:
        ids = client.get_bins("urls", positions=[0, 1]).ids
        assert client.keys("urls", ids) == [key_of("urls", number) for number in ids.tolist()]
        assert client.keys("plain", [1, 1]) == ["", ""]
        assert client.keys("mixed", [4, 3], component="names") == [key_of("names", 4), key_of("names", 3)]
        assert client.keys("urls", []) == []


def test_a_step_is_explained_with_keys(clients):
    remote, embedded = (
        explain_step(client, "mixed", step=1, seed=2, topology=Topology(batch_size=12)) for client in clients
    )
    assert str(remote) == str(embedded)
    keys = [sequence.key for row in remote.rows for sequence in row.sequences]
    assert all(key == "" or key in str(remote) for key in keys)
    assert {key[:4] for key in keys} == {"", "http", "docu"}


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("plain", ["a"], "a is not an id, and plain has no keys"),
        ("urls", [""], "an empty text is not a key"),
        ("urls", ["ä" * 4097], "8,194 bytes"),
        ("urls", "a", "must be a list of texts"),
    ],
)
def test_what_is_no_key_is_refused(clients, name, keys, message):
    for client in clients:
        with pytest.raises(InvalidRequestError, match=message):
            client.locate(name, keys=keys)


def test_too_many_are_refused(clients):
    for client in clients:
        with pytest.raises(PackhorseError, match="10001 ids and keys are asked for"):
            client.locate("urls", keys=["a"] * 10_000, ids=[1])


class Losing:
    """A client whose first stream loses its first block."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def stream_bins(self, name, **options):
        stream = self.client.stream_bins(name, **options)
        self.lost = next(stream)
        return stream


def test_an_audit_names_what_is_missing_by_its_key(clients):
    losing = Losing(clients[0])
    info = losing.get_dataset("urls")
    streams = EpochOfStreams(client=losing, dataset=info, epoch=0, seed=1, topology=Topology())
    (missing,) = [problem for problem in streams.audit().problems if problem.startswith("missing: ")]
    assert all(f"{number} {key_of('urls', number)}" in missing for number in losing.lost.ids.tolist()[:10])
