"""When a certificate expires, as its file says; checked against openssl."""

import subprocess
from datetime import datetime

import pytest
from tests.certificates import Authority

from packhorse.wire.certificates import expiry_of


@pytest.mark.parametrize("days", [1, 20, 20_000])
def test_the_end_is_the_one_that_openssl_reads(tmp_path, days):
    """20,000 days are beyond 2049, from where on a year has four digits."""
    cert = Authority(tmp_path).issue("own", days=days).cert
    command = ["openssl", "x509", "-enddate", "-noout", "-in", str(cert)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert datetime.strptime(told, "notAfter=%b %d %H:%M:%S %Y GMT") == expiry_of(cert).replace(tzinfo=None)


def test_files_that_hold_none_are_refused(tmp_path):
    whole = Authority(tmp_path).ca.read_text()
    for content in ("", "no certificate", whole[: len(whole) // 2], whole.replace("MII", "AAA", 1)):
        (tmp_path / "odd").write_text(content)
        with pytest.raises(ValueError, match="odd holds no certificate"):
            expiry_of(tmp_path / "odd")
