"""The sender of the call that is answered: what it may read and change.

Owns `CALLER`, which the interceptor sets for each call, and what a token hides in answers: datasets that it is not for.
Leaves the token file and its grants to `bearer_tokens`.
"""

from contextvars import ContextVar

from google.protobuf.message import Message

from packhorse.parameters import parameter
from packhorse.server.access.bearer_tokens import TOKENS, Grant, TokenFile
from packhorse.server.base.faults import ServiceError
from packhorse.v1 import packing_pb2 as pb


class Caller:
    """The sender of a call to a server without a token file: may read everything and change nothing.

    If the server has a token file, the sender is a `TokenHolder`.
    """

    name = ""
    """Name of the token's holder, for people and the log; empty without a token."""

    def check_request(self, request: Message) -> None:
        """Raises a ServiceError if the request is about a dataset that the caller may not read."""

    def check_changes(self) -> None:
        """Raises a ServiceError if the caller may not change what runs get: a server without tokens knows nobody."""
        raise ServiceError(
            pb.ERROR_REASON_NOT_IMPLEMENTED,
            (
                "this server changes nothing for clients that it does not know: start it with a "
                + parameter("token_file")
                + ", and give a token whose methods name AppendStage; or run `packhorse mixture append` on its "
                "machine"
            ),
        )

    def check_again(self) -> None:
        """Raises a ServiceError if the caller may not continue with an open stream."""

    def visible_datasets(self, response: pb.ListDatasetsResponse) -> pb.ListDatasetsResponse:
        """Returns the datasets that the caller may know of, and when its token expires."""
        return response

    def visible_activity(self, activity: pb.GetActivityResponse) -> pb.GetActivityResponse:
        """Returns what the caller may know of the server's activity."""
        return activity

    def visible_error(self, error: ServiceError) -> ServiceError:
        """Returns what the caller may read of a refusal."""
        return error


class TokenHolder(Caller):
    """The sender of a call with a token: may do what the token's grant says.

    Args:
        tokens: the file with the token.
        grant: the token's line in it.
    """

    def __init__(self, tokens: TokenFile, grant: Grant) -> None:
        self._tokens = tokens
        self._grant = grant
        self.name = grant.name

    def check_request(self, request: Message) -> None:
        """Raises a ServiceError if the token is not for the request's dataset, or not for the tokens it asks for."""
        if isinstance(request, pb.GetDatasetRequest):  # the only request that calls its dataset `name`
            self._grant.check_dataset(request.name)
        elif "dataset" in request.DESCRIPTOR.fields_by_name:
            self._grant.check_dataset(request.dataset)  # type: ignore[attr-defined]
        if getattr(request, "with_tokens", False):
            self._grant.check_method(TOKENS)  # no method, but a token's line names it like one

    def check_changes(self) -> None:
        """Checks nothing: a call gets here only if its token names the method."""

    def check_again(self) -> None:
        """Raises a ServiceError if the token has expired, or was withdrawn or changed."""
        self._tokens.check_again(self._grant)

    def visible_datasets(self, response: pb.ListDatasetsResponse) -> pb.ListDatasetsResponse:
        """Returns the datasets that the token is for, and when it expires."""
        expires = self._grant.expires
        return pb.ListDatasetsResponse(
            datasets=[dataset for dataset in response.datasets if self._grant.allows_dataset(dataset.name)],
            server_version=response.server_version,
            token_expires_seconds=0 if expires is None else int(expires.timestamp()),
        )

    def visible_activity(self, activity: pb.GetActivityResponse) -> pb.GetActivityResponse:
        """Returns the activity without streams and datasets that the token is not for."""
        if self._grant.covers_every_dataset:
            return activity
        visible = pb.GetActivityResponse()
        visible.CopyFrom(activity)
        visible.ClearField("streams")
        visible.ClearField("datasets")
        visible.streams.extend(each for each in activity.streams if self._grant.allows_dataset(each.dataset))
        visible.datasets.extend(each for each in activity.datasets if self._grant.allows_dataset(each.name))
        return visible

    def visible_error(self, error: ServiceError) -> ServiceError:
        """Returns a refusal without the names of datasets that the token is not for."""
        if error.reason != pb.ERROR_REASON_DATASET_NOT_FOUND or self._grant.covers_every_dataset:
            return error
        name = error.metadata.get("dataset", "")
        return ServiceError(error.reason, f"no dataset that this token is for is named {name!r}", error.metadata)


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 (it has no state)
"""The sender of the call that the current asyncio task answers."""
