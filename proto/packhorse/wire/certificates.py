"""When a certificate expires, read from its PEM file.

Owns the few elements of DER that it reads; leaves checking a certificate to TLS.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path

from packhorse.storage import read_plain

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


_VERSION = 0xA0
"""The tag of a certificate's first field, which the oldest ones lack."""
_TWO_DIGITS_OF_YEAR = 0x17
"""The tag of a time whose year has two digits; in others it has four."""


def end_of(path: str | Path) -> datetime:
    """Returns when the first certificate of a PEM file expires.

    Raises:
        ValueError: it holds no certificate.
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
    """Returns how many days are left until a time; below 0 after it."""
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
