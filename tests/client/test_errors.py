"""The exception tree: drawn whole, mapped whole, and what gRPC itself answers."""

import pickle
import re

import grpc
import pytest

from packhorse import client
from packhorse.client import RetryPolicy, ServerUnavailableError, StreamInterruptedError, connect, errors
from packhorse.topology import Topology


def all_exceptions():
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.PackhorseError)
    }


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = {}
    parents = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"([│ ├└─]*)(\w+Error)\b(?: \(an? (\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            parents[depth:] = [match[2]]
            drawn[match[2]] = {parents[depth - 1]} if depth else {"Exception"}
            drawn[match[2]] |= {match[3]} - {None}
    assert drawn == {name: {base.__name__ for base in kind.__bases__} for name, kind in all_exceptions().items()}


def test_every_exception_is_public_and_documented():
    for name, kind in all_exceptions().items():
        assert name in client.__all__
        assert getattr(client, name) is kind
        assert kind.__doc__


def test_every_exception_is_raised_for_a_reason_or_without_a_server():
    mapped = set(errors.EXCEPTION_OF_REASON.values())
    abstract_or_own = {
        errors.PackhorseError,
        errors.TransientError,
        errors.AccessDeniedError,
        errors.DamagedAnswerError,
        errors.ServerUnavailableError,
        errors.StreamInterruptedError,
    }
    assert mapped | abstract_or_own == set(all_exceptions().values())
    assert not mapped & abstract_or_own


def test_no_server_at_all():
    with connect("127.0.0.1:1", retry=RetryPolicy(deadline_seconds=0)) as nobody:
        with pytest.raises(ServerUnavailableError, match=r"^127\.0\.0\.1:1: UNAVAILABLE"):
            nobody.list_datasets()
        stream = nobody.stream_bins("rows", topology=Topology(start_position=12), epoch=3)
        with pytest.raises(StreamInterruptedError, match="position 12 of epoch 3") as caught:
            next(stream)
        assert (caught.value.position, caught.value.step) == (12, 0)
        with pytest.raises(StreamInterruptedError):
            nobody.stream_bins("rows").header  # noqa: B018


def test_a_server_that_is_none(running_server):
    address = running_server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    with connect(address, retry=RetryPolicy(deadline_seconds=0)) as http, pytest.raises(client.PackhorseError):
        http.list_datasets()


def test_a_token_does_not_travel_in_plain_text(running_unix_server):
    with pytest.raises(ValueError, match="token needs credentials"):
        connect("127.0.0.1:50051", token="secret")
    with connect(running_unix_server.target, token="secret") as local:
        assert local.get_dataset("few").num_sequences == 7
    assert connect("127.0.0.1:1", token="secret", credentials=grpc.ssl_channel_credentials()).target


def test_a_stream_s_error_survives_a_worker_s_boundary():
    """DataLoader workers send exceptions as pickles."""
    for error in (
        errors.DigestMismatchError("other", {"differs": "counts"}),
        errors.TooManyStreamsError("full", {}, retry_after_seconds=2.0),
        errors.StreamInterruptedError("broke", position=40, step=5),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.metadata) == (type(error), str(error), error.metadata)
        assert vars(again) == vars(error)
