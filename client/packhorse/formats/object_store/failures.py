"""What a failure of a store means: wrong credentials, or nobody at the address.

Leaves trying again to `attempts`.
"""

import socket

_NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
)
"""Names that stores' exceptions, or their messages, have for missing or wrong credentials."""

_UNREACHED = (
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "ClientConnectorError",
    "ClientConnectorDNSError",
    "EndpointConnectionError",
    "NameResolutionError",
    "NewConnectionError",
)
"""Names of HTTP libraries' exceptions if nobody is at an address."""


def lacks_credentials(error: BaseException) -> bool:
    """Returns whether a store's exception says that credentials are missing or wrong."""
    text = f"{type(error).__name__} {error}"
    return any(name in text for name in _NO_CREDENTIALS)


def is_unreached(error: BaseException | None) -> bool:
    """Returns whether an exception, or one of its causes, says that nobody is at the address."""
    seen: set[int] = set()  # a chain of causes may end in a circle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, socket.gaierror | ConnectionRefusedError) or type(error).__name__ in _UNREACHED:
            return True
        error = error.__cause__ or error.__context__
    return False
