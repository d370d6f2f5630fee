"""An arm64 Python that QEMU runs on another processor: `python tests/deploy/arm64.py` gets it from Debian's mirror.

Owns its folder, how that is filled, and the command that runs it. The machine's own packages stay as they are: apt-get
only downloads, with lists and a status of its own. Needs Debian or Ubuntu for that, QEMU's user emulation
(`apt-get install qemu-user-static`), and no root; binfmt is not used.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("ARM64_FOLDER") or Path.home() / ".cache" / "packhorse-arm64")
"""Holds `root`, Debian's files; `packages-…`, those of an index; and `project-…`, this one with its kernels: 400 MB."""

ROOT = FOLDER / "root"
DEBIAN = ("python3", "libpython3-stdlib", "libstdc++6")
EXTRA = ("numba", "highspy", "grpcio-reflection", "prometheus-client")
"""What is installed beside the project's own dependencies."""

OLDEST_GLIBC, NEWEST_GLIBC = 17, 36
"""Minor versions whose wheels are taken; Debian 12 has 2.36."""


def missing() -> str:
    """Returns what there has to be before it can run, and how to get it; "" if nothing is missing."""
    if emulator() is None:
        return "no emulator of arm64: apt-get install qemu-user-static"
    if not python().exists():
        return f"no arm64 Python in {FOLDER}: python {Path(__file__).relative_to(REPOSITORY)} gets it"
    return ""


def emulator() -> str | None:
    """Returns the path of QEMU's user emulation; None if it is not installed."""
    return shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def python() -> Path:
    """Returns the interpreter."""
    return next((ROOT / "usr" / "bin").glob("python3.[0-9]*[0-9]"), ROOT / "usr" / "bin" / "python3")


def command() -> list[str]:
    """Returns the words before a Python's arguments."""
    return [str(emulator()), "-L", str(ROOT), str(python())]


def get_debian() -> None:
    """Downloads Debian's packages for arm64, and unpacks them."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("lists/partial", "cache/archives/partial", "state"):
            (folder / part).mkdir(parents=True)
        status = folder / "state" / "status"
        status.touch()
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures::": "arm64",
            "APT::Install-Recommends": "false",
            "Debug::NoLocking": "true",
            "Dir::Cache": folder / "cache",
            "Dir::State": folder / "state",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": status,
        }
        apt = ["apt-get", "-q", "-y", *(f"-o{key}={value}" for key, value in settings.items())]
        subprocess.run([*apt, "update"], check=True)
        subprocess.run([*apt, "install", "--download-only", *DEBIAN], check=True)
        for package in sorted((folder / "cache" / "archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(ROOT, ignore_errors=True)
        shutil.move(folder / "root", ROOT)


def get_packages() -> Path:
    """Returns a folder of wheels for arm64 with the pinned versions, unpacked; pip downloads what is not there yet.

    Raises:
        subprocess.CalledProcessError: pip could not download them.
    """
    pins = (REPOSITORY / "constraints.txt").read_text()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *EXTRA]
    version = python().name.removeprefix("python")
    folder = FOLDER / f"packages-{sha256(repr((version, wanted, pins)).encode()).hexdigest()[:12]}"
    if not folder.exists():
        platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(OLDEST_GLIBC, NEWEST_GLIBC + 1)]
        with TemporaryDirectory(dir=FOLDER) as unpacked:
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", unpacked),
                    *("--only-binary", ":all:", "--implementation", "cp", "--python-version", version),
                    *(word for platform in ("manylinux2014_aarch64", *platforms) for word in ("--platform", platform)),
                    *("--constraint", str(REPOSITORY / "constraints.txt"), *wanted),
                ],
                check=True,
            )
            shutil.copytree(unpacked, folder)
    return folder


def get_project(wheels: Path) -> Path:
    """Returns a folder with the project as it is now, from a wheel that is built in `wheels`.

    Equal sources have one folder, so that Numba finds what it compiled from them.
    """
    subprocess.run(
        [*(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels)), str(REPOSITORY)],
        check=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
        stdout=subprocess.DEVNULL,
    )
    [wheel] = wheels.glob("*.whl")
    folder = FOLDER / f"project-{sha256(wheel.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        for earlier in FOLDER.glob("project-*"):
            shutil.rmtree(earlier)
        with zipfile.ZipFile(wheel) as content:
            content.extractall(folder)
    return folder


if __name__ == "__main__":
    get_debian()
    get_packages()
    print(f"{FOLDER} holds an arm64 Python")
