"""When plain text is safe, and when a certificate expires.

Owns which addresses never leave the machine, and reading a certificate's end from its file.
"""

import ipaddress
import ssl
from datetime import UTC, datetime
from pathlib import Path

from packhorse.storage import read_plain

_UNIX = ("unix:", "unix-abstract:")


def is_local(address: str) -> bool:
    """Whether an address is a unix socket or of loopback.

    A name other than localhost counts as another machine, whatever it resolves to today.

    Example:
        >>> [is_local(address) for address in ("127.0.0.1:50051", "[::1]:5", "unix:/run/s", "0.0.0.0:5", "trainer:5")]
        [True, True, True, False, False]

    Args:
        address: HOST:PORT, HOST or unix:PATH.
    """
    if address.startswith(_UNIX):
        return True
    host = address if _is_ip(address) else address.rpartition(":")[0] or address
    host = host.strip("[]")
    return host == "localhost" or (_is_ip(host) and ipaddress.ip_address(host).is_loopback)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION = 0xA0
"""The tag of a certificate's first field, which the oldest ones lack."""
_TWO_DIGITS_OF_YEAR = 0x17
"""The tag of a time whose year has two digits; in others it has four."""


def end_of(path: str | Path) -> datetime:
    """Returns when the first certificate of a PEM file expires.

    Raises:
        ValueError: it holds none.
        OSError: it cannot be read.
    """
    _, begin, rest = read_plain(path).decode("ascii", errors="replace").partition(_BEGIN)
    try:
        data = ssl.PEM_cert_to_DER_cert(begin + rest.partition(_END)[0] + _END)
        certificate, *_ = _elements(data)
        signed, *_ = _elements(certificate[1])
        fields = _elements(signed[1])
        _, _, _, validity, *_ = (
            fields[1:] if fields[0][0] == _VERSION else fields
        )  # serial, algorithm, issuer, validity
        _, (tag, end) = _elements(validity[1])
        year = "%y" if tag == _TWO_DIGITS_OF_YEAR else "%Y"
        return datetime.strptime(end.decode("ascii"), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (ValueError, IndexError):
        raise ValueError(f"{path} holds no certificate (PEM)") from None


def days_until(end: datetime) -> float:
    """Returns how many days are left; below 0 after the end."""
    return (end - datetime.now(UTC)).total_seconds() / 86_400


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Returns the consecutive elements of DER data: (tag, content) each."""
    elements, at = [], 0
    while at < len(data):
        tag, length, begin = data[at], data[at + 1], at + 2
        if length & 0x80:  # the low bits say how many bytes the length takes
            begin += length & 0x7F
            length = int.from_bytes(data[at + 2 : begin], "big")
        at = begin + length
        if at > len(data):
            raise ValueError("an element ends beyond its data")
        elements.append((tag, data[begin:at]))
    return elements
