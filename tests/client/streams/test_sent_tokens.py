"""Tokens that come with bins: what is damaged or missing is never trained on."""

import numpy as np
import pytest

from packhorse.client.errors import DamagedAnswerError, VersionMismatchError
from packhorse.client.streams.sent_tokens import decode_tokens, tokens_of_answer
from packhorse.tokens import TokenSourceError
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import tokens_checksum

LENGTHS = np.array([3, 2], dtype=np.int32)


def message(tokens=(7, 8, 9, 1, 2), **fields):
    made = pb.Tokens(tokens=np.array(tokens, "<u2").tobytes(), token_bytes=2, **fields)
    made.checksum = tokens_checksum(made, 5)
    return made


def test_they_are_the_entries_in_their_order():
    tokens, mask = decode_tokens(message(loss_mask=b"\x0d"), 5, LENGTHS, None)
    assert [each.tolist() for each in tokens.by_entry()] == [[7, 8, 9], [1, 2]]
    assert [each.tolist() for each in mask.by_entry()] == [[1, 0, 1], [1, 0]]
    assert [each.tolist() for each in tokens.entries(1, 2).by_entry()] == [[1, 2]]


def test_pieces_are_found_by_their_first_token():
    sizes, whole = np.array([3, 2], "<u4").tobytes(), np.array([9, 2], "<i8").tobytes()
    sent = message(sizes=sizes, whole_sizes=whole)
    tokens, _ = decode_tokens(sent, 5, LENGTHS, np.array([4, 0]))
    assert tokens.lengths(np.arange(2)).tolist() == [9, 2]
    out = np.zeros(4, dtype=np.int64)
    gather = tokens.gather_from(np.arange(2), np.array([2, 2]), first_tokens=np.array([5, 0]))
    gather(0, 2, out, np.array([0, 2]))
    assert out.tolist() == [8, 9, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: setattr(sent, "tokens", b"\x00" + sent.tokens[1:]),
        lambda sent: setattr(sent, "loss_mask", b"\x01"),
        lambda sent: setattr(sent, "token_bytes", 4),
        lambda sent: setattr(sent, "has_prefixes", True),
        lambda sent: setattr(sent, "checksum", sent.checksum ^ 1),
    ],
)
def test_altered_bytes_are_noticed(change):
    sent = message()
    change(sent)
    with pytest.raises(DamagedAnswerError, match="do not match their checksum"):
        decode_tokens(sent, 5, LENGTHS, None)


def test_tokens_of_other_bins_are_noticed():
    with pytest.raises(DamagedAnswerError, match="do not match their checksum"):
        decode_tokens(message(), 6, LENGTHS, None)


@pytest.mark.parametrize(
    "sent",
    [
        message((1, 2, 3)),
        message(sizes=np.array([3], "<u4").tobytes(), whole_sizes=np.array([3], "<i8").tobytes()),
        message(loss_mask=b"\x01\x01"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(sent):
    with pytest.raises(DamagedAnswerError, match="do not fit the bins"):
        decode_tokens(sent, 5, LENGTHS, None)


def test_tokens_of_an_unknown_size_are_refused():
    sent = pb.Tokens(tokens=bytes(40), token_bytes=8)
    sent.checksum = tokens_checksum(sent, 5)
    with pytest.raises(DamagedAnswerError, match="8 bytes each"):
        decode_tokens(sent, 5, LENGTHS, None)


def test_fewer_tokens_than_a_batch_needs_are_refused():
    tokens, _ = decode_tokens(message(), 5, LENGTHS, None)
    with pytest.raises(DamagedAnswerError, match="fewer than their rooms hold"):
        tokens.gather_from(np.arange(2), np.array([4, 2]))


def test_a_server_that_knows_nothing_of_tokens_is_named():
    with pytest.raises(VersionMismatchError, match="too old for tokens in a stream"):
        tokens_of_answer(pb.StreamBlock(), is_wanted=True)
    assert tokens_of_answer(pb.StreamBlock(), is_wanted=False) is None


def test_single_sequences_cannot_be_read():
    tokens, _ = decode_tokens(message(), 5, LENGTHS, None)
    with pytest.raises(TokenSourceError, match="give tokens= to read single sequences"):
        tokens.read(0)
