"""Certificates for tests, made by the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """A CA of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            *(
                "req",
                "-x509",
                *_NEW_KEY,
                "-keyout",
                self._key,
                "-out",
                self.ca,
                "-days",
                30,
                "-subj",
                "/CN=packhorse tests",
            ),
            *("-addext", "keyUsage=critical,keyCertSign"),
        )

    def issue(self, name: str, *, for_names: str = "DNS:localhost,IP:127.0.0.1", days: int = 20) -> Certificate:
        """Makes a certificate; negative days make one that has expired."""
        cert, key, request, extensions = (self._folder / f"{name}.{kind}" for kind in ("pem", "key", "csr", "ext"))
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        extensions.write_text(f"subjectAltName={for_names}\n")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", days, "-extfile", extensions, "-out", cert),
        )
        return Certificate(cert, key)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
