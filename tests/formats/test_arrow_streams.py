"""Finding the record batches of Arrow streams: those of pyarrow's files, and an error for damaged ones."""

import struct

import pyarrow as pa
import pytest

from packhorse.formats.arrow.streams import streamed_batches


@pytest.fixture
def stream() -> bytes:
    """A stream with record batches of 2 rows and of 1 row."""
    table = pa.table({"tokens": [[1, 2], [3], [4, 5, 6]]})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    content: bytes = out.getvalue().to_pybytes()
    return content


def test_each_batch_is_found_where_pyarrow_wrote_it(stream: bytes) -> None:
    schema = pa.ipc.open_stream(stream).schema
    found = streamed_batches(lambda begin, end: stream[begin:end], len(stream), "x")
    assert [batch.num_rows for batch in found] == [2, 1]
    read = [pa.ipc.read_record_batch(pa.py_buffer(stream[batch.begin : batch.end]), schema) for batch in found]
    assert [batch["tokens"].to_pylist() for batch in read] == [[[1, 2], [3]], [[4, 5, 6]]]


def test_a_stream_that_ends_within_a_message_is_refused(stream: bytes) -> None:
    cut = stream[:-24]
    with pytest.raises(ValueError, match="a message ends beyond the end of the file"):
        streamed_batches(lambda begin, end: cut[begin:end], len(cut), "x")


def test_a_message_of_a_negative_size_is_refused_and_not_read_again_and_again(stream: bytes) -> None:
    damaged = stream[:4] + struct.pack("<i", -8) + stream[8:]  # of the schema, which has no body
    with pytest.raises(ValueError, match="x cannot be read as an Arrow IPC stream at byte 0: "):
        streamed_batches(lambda begin, end: damaged[begin:end], len(damaged), "x")
