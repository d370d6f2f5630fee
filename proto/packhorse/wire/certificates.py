"""Until when a certificate is good, read from its file: the ssl module tells it of a peer's only.

Owns finding that one field, and how far away it is; leaves whether a certificate is accepted to the handshake.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION = 0xA0
"""The tag of a certificate's first field, which the oldest ones lack."""
_TWO_DIGITS_OF_YEAR = 0x17
"""The tag of a time that is written so; others have four."""


def end_of(path: str | Path) -> datetime:
    """Returns when the first certificate of a PEM file expires.

    Raises:
        ValueError: it holds none.
        OSError: it cannot be read.
    """
    _, begin, rest = Path(path).read_text("ascii", errors="replace").partition(_BEGIN)
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
    """Returns how many days are left, below 0 where it is over."""
    return (end - datetime.now(UTC)).total_seconds() / 86_400


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Returns the elements that lie one after the other in DER: (tag, content) each."""
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
