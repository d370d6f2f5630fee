"""Streams from a real server: blocks that grow, headers, resuming, and refusal of another dataset."""

import pytest
from tests.faulty_server import Faults

from packhorse.client import DigestMismatchError, RetryPolicy, connect
from packhorse.topology import Topology


def test_blocks_grow_from_one_step_and_hold_whole_steps(client):
    stream = client.stream_bins(
        "rows", topology=Topology(world_size=2, workers_per_rank=3, batch_size=2), rank=1, worker=2
    )
    blocks = list(stream)
    assert len(blocks[0].steps) == 1
    assert [len(block.steps) for block in blocks[:3]] == [1, 4, 16]
    assert all(len(block) == 2 * len(block.steps) for block in blocks)
    step = 2
    for block in blocks:
        assert block.steps == range(step, step + 3 * len(block.steps), 3)
        step = block.steps.stop
    assert step >= stream.header.num_steps > step - 3


def test_blocks_stay_within_their_bound(embedded, monkeypatch):
    monkeypatch.setattr("packhorse.server.methods.open_stream.BLOCK_BYTES", 2048)
    monkeypatch.setattr("packhorse.server.methods.open_stream.LEAST_BLOCK_BYTES", 2048)
    blocks = list(embedded.stream_bins("rows"))
    sizes = [4 * len(block.ids) + 8 * len(block) for block in blocks]
    assert len(blocks) > 8
    assert max(sizes) < 2 * 2048
    assert sum(size > 1024 for size in sizes) > len(sizes) // 2


def test_header(client):
    info = client.get_dataset("rows")
    header = client.stream_bins(
        "rows", topology=Topology(world_size=3, batch_size=4, start_position=5, remainder="drop")
    ).header
    left = info.num_bins - 5
    assert header.digest == info.digest
    assert header.num_bins == info.num_bins
    assert header.num_steps == left // 12
    assert header.num_bins_dropped == left % 12 > 0
    assert header.max_seq_len == info.max_seq_len == 256
    assert header.max_sequences_per_bin == info.max_sequences_per_bin
    for remainder in ("spread", "repeat", "empty"):
        header = client.stream_bins(
            "rows", topology=Topology(world_size=3, batch_size=4, start_position=5, remainder=remainder.upper())
        ).header
        assert (header.num_steps, header.num_bins_dropped) == (left // 12 + 1, 0)


@pytest.mark.parametrize("mode", ["partition", "independent"])
def test_first_step_leaves_out_what_came_before(client, bins_of_stream, mode):
    topology = Topology(world_size=2, workers_per_rank=3, batch_size=3, mode=mode)
    arguments = {"rank": 1, "worker": 1, "topology": topology, "seed": 3}
    stride = 3 if mode == "partition" else 1
    whole = bins_of_stream(client.stream_bins("rows", **arguments), 3, stride)
    last = whole[-1].step
    for first_step in (0, 1, 2, 5, 40, last, last + 1, 10**12):
        rest = bins_of_stream(client.stream_bins("rows", first_step=first_step, **arguments), 3, stride)
        assert rest == [d for d in whole if d.step >= first_step]


def test_start_at_the_end_gives_nothing(client):
    num_bins = client.get_dataset("rows").num_bins
    stream = client.stream_bins("rows", topology=Topology(start_position=num_bins))
    assert (stream.header.num_steps, list(stream)) == (0, [])


def test_a_worker_without_steps_gets_none(client):
    stream = client.stream_bins("few", topology=Topology(workers_per_rank=50), worker=49)
    assert list(stream) == []
    assert stream.header.num_steps < 50


def test_a_closed_stream_goes_on_where_it_was(client, joined):
    whole = list(client.stream_bins("rows"))
    stream = client.stream_bins("rows")
    blocks = []
    for block in stream:
        blocks.append(block)
        stream.close()
    assert joined(blocks) == joined(whole)
    assert len(blocks) > len(whole)
    assert next(stream, None) is None


def test_position_after(client):
    stream = client.stream_bins("rows", topology=Topology(world_size=4, batch_size=5, start_position=7))
    assert stream.position_after(0) == 27
    assert stream.position_after(stream.header.num_steps - 1) == stream.header.num_bins


def test_equal_coordinates_give_equal_streams_and_others_do_not(client, joined):
    def read(**coordinates):
        return joined(client.stream_bins("rows", **coordinates))["ids"]

    assert read(seed=1, epoch=2) == read(seed=1, epoch=2)
    assert len({read(seed=1, epoch=2), read(seed=2, epoch=1), read(seed=3), read(epoch=3), read()}) == 5


@pytest.fixture(scope="module")
def variants(corpus, tmp_path_factory):
    """The same rows prepared with another max_seq_len, another option, other ids, and other rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    folder = tmp_path_factory.mktemp("variants")
    lengths = [len(tokens) for tokens in corpus.sequences]
    tables = {
        "max_seq_len": ({"n": lengths}, {"max_seq_len": 320}),
        "option": ({"n": lengths}, {"max_seq_len": 256, "max_sequences_per_bin": 4}),
        "ids": ({"n": lengths, "id": range(1, 2001)}, {"max_seq_len": 256, "id_column": "id"}),
        "rows": ({"n": lengths[:-1]}, {"max_seq_len": 256}),
    }
    for name, (columns, options) in tables.items():
        pq.write_table(pa.table({k: list(v) for k, v in columns.items()}), folder / f"{name}.parquet")
        # every variant is served under the same name
        output = folder / name / "rows"
        prepare(folder / f"{name}.parquet", length_column="n", output=output, progress=False, **options)
    return folder


@pytest.mark.parametrize(
    ("variant", "differs"),
    [
        ("max_seq_len", {"options", "templates"}),
        ("option", {"options", "templates"}),
        ("ids", {"pools"}),
        ("rows", {"counts", "templates", "pools"}),
    ],
)
def test_another_dataset_is_refused_by_digest(client, variants, variant, differs):
    digest = client.get_dataset("rows").digest
    with connect(f"embedded:{variants / variant}") as other:
        calls = [
            lambda: other.stream_bins("rows", expected_digest=digest).header,
            lambda: other.get_bins("rows", positions=[0], expected_digest=digest),
        ]
        for call in calls:
            with pytest.raises(DigestMismatchError) as caught:
                call()
            assert set(caught.value.metadata["differs"].split(",")) == differs
            assert caught.value.metadata["expected"] == digest
            assert caught.value.metadata["actual"] == other.get_dataset("rows").digest != digest
            assert all(part in str(caught.value) for part in differs)
    assert client.stream_bins("rows", expected_digest=digest).header.digest == digest


@pytest.mark.parametrize("digest", ["nonsense", "-".join(["0" * 16] * 4), "a-b"])
def test_remote_refuses_a_foreign_digest(client, digest):
    with pytest.raises(DigestMismatchError, match=r"counts, options, templates, pools differ"):
        next(client.stream_bins("rows", expected_digest=digest))


def test_a_server_that_comes_back_with_another_dataset_is_refused(corpus, variants, make_server):
    lasting = Faults(steps_per_block=2, block_seconds=0.02)  # the stream cannot lie in buffers whole
    with (
        make_server(corpus.root, faults=lasting) as server,
        connect(server.target, retry=RetryPolicy(deadline_seconds=60)) as client,
    ):
        stream = client.stream_bins("rows")
        first = [next(stream), next(stream)]
        assert sum(len(block.steps) for block in first) == 3
        server.kill()
        server.root = variants / "max_seq_len"
        server.start()
        with pytest.raises(DigestMismatchError, match="max_seq_len is 320 here") as caught:
            list(stream)
        assert "options" in caught.value.metadata["differs"]
        assert "counts" not in caught.value.metadata["differs"]
