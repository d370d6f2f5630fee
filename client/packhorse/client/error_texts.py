"""Parts of the texts of errors that the whole client raises: which field is wrong, and who is too old.

Owns the two exceptions that are made in many places, `invalid` and `too_old`, and the shortening of long texts. Leaves
the classes of the exceptions to `client.errors`, and quoting a value to `packhorse.topology.checks`.
"""

from packhorse.client.errors import InvalidRequestError, VersionMismatchError
from packhorse.parameters import parameter
from packhorse.wire import WIRE_VERSION


def invalid(field: str, why: str) -> InvalidRequestError:
    """Returns the exception for a field with a wrong value: its text is the field's name and `why`."""
    return InvalidRequestError(parameter(field) + f": {why}", {"field": field})


def too_old(feature: str) -> VersionMismatchError:
    """Returns the exception for a server that ignores a newer field of the request, such as "keys"."""
    return VersionMismatchError(
        f"this server is too old for {feature}: upgrade packhorse on the server's side",
        {"client_version": str(WIRE_VERSION), "server_version": str(WIRE_VERSION)},
    )


def bounded(text: object, most: int = 1000) -> str:
    """Returns the first `most` characters of a text, and an ellipsis if it has more."""
    text = str(text)
    return text if len(text) <= most else f"{text[:most]}…"
