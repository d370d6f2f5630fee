"""The address of a server that nobody configured, and which addresses are of this machine: safe without TLS."""

import ipaddress

DEFAULT_ADDRESS = "127.0.0.1:50051"
"""Where a server listens, and where the command line looks for it, unless they are told otherwise."""

_UNIX = ("unix:", "unix-abstract:")


def is_local(address: str) -> bool:
    """Returns whether an address is a unix socket or a loopback address.

    A name other than localhost counts as another machine, whatever it resolves to today.

    Example:
        >>> [is_local(address) for address in ("127.0.0.1:50051", "[::1]:5", "unix:/run/s", "0.0.0.0:5", "trainer:5")]
        [True, True, True, False, False]

    Args:
        address: HOST:PORT, HOST or unix:PATH.
    """
    if address.startswith(_UNIX):
        return True
    # Without a port an IPv6 address has colons of its own (::1), and a name none.
    host = address if _is_ip(address) else address.rpartition(":")[0] or address
    host = host.strip("[]")
    return host == "localhost" or (_is_ip(host) and ipaddress.ip_address(host).is_loopback)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
