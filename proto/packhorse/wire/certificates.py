"""When a certificate expires, read from its PEM file.

Owns reading the few elements of DER, the binary form inside PEM, that lead to this time. The ssl module reads it only
from a peer's certificate. Leaves checking a certificate to TLS.
"""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from packhorse.storage import read_plain

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

_VERSION = 0xA0
"""DER's tag of a certificate's first field, the version, which the oldest certificates lack."""
_TWO_DIGITS_OF_YEAR = 0x17
"""DER's tag of a time whose year has two digits; every other time has a year of four."""


def expiry_of(path: str | Path) -> datetime:
    """Returns when the first certificate of a PEM file expires.

    Raises:
        ValueError: the file holds no certificate.
        OSError: the file cannot be read.
    """
    _, begin, rest = read_plain(path).decode("ascii", errors="replace").partition(_BEGIN)
    try:
        data = ssl.PEM_cert_to_DER_cert(begin + rest.partition(_END)[0] + _END)
        # Certificate: [signed part, …]; signed part: [version], serial number, algorithm, issuer, validity, …;
        # validity: begin, end.
        certificate, *_ = _elements(data)
        signed, *_ = _elements(certificate.content)
        fields = _elements(signed.content)
        if fields[0].tag == _VERSION:
            del fields[0]
        _serial, _algorithm, _issuer, validity, *_ = fields
        _, end = _elements(validity.content)
        year = "%y" if end.tag == _TWO_DIGITS_OF_YEAR else "%Y"
        return datetime.strptime(end.content.decode("ascii"), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (ValueError, IndexError):
        raise ValueError(f"{path} holds no certificate (PEM)") from None


def days_until(end: datetime) -> float:
    """Returns the number of days until a time; negative if the time is past."""
    return (end - datetime.now(UTC)) / timedelta(days=1)


class _Element(NamedTuple):
    """An element of DER: a value, or a list of elements end to end."""

    tag: int
    """The content's type."""
    content: bytes


def _elements(data: bytes) -> list[_Element]:
    """Returns the elements of DER data, in order; raises a ValueError if one is cut."""
    elements, at = [], 0
    while at < len(data):
        tag, length, begin = data[at], data[at + 1], at + 2
        if length & 0x80:  # the low bits say how many bytes the length takes
            begin += length & 0x7F
            length = int.from_bytes(data[at + 2 : begin], "big")
        at = begin + length
        if at > len(data):
            raise ValueError("an element ends beyond its data")
        elements.append(_Element(tag, data[begin:at]))
    return elements
