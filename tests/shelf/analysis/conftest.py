"""What tests of the status page share: a browser, and the script that looks for barriers."""

import shutil
import subprocess

import pytest
from tests.browser import Browser

AXE = "axe-core@4.14.1"


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser") / "profile")
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium):
    with chromium.page() as browser:
        yield browser


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """axe-core's script, by way of npm and its cache."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if (
        npm is None
        or subprocess.run([npm, "pack", "--prefer-offline", AXE], cwd=folder, capture_output=True).returncode
    ):
        pytest.skip(f"npm cannot get {AXE}")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder, "gztar")
    return (folder / "package" / "axe.min.js").read_text()
