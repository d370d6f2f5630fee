"""The tree that a release is built from: what is committed, with the address of the project in it.

    python deploy/release_tree.py build/release --repository https://github.com/OWNER/NAME --tag v0.1.0

Owns what a reader of the package index needs and a clone does not: project URLs, links that lead out of the README, and
commands that install from the index. Without an address it only copies.
"""

import argparse
import io
import re
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


def write_tree(target: Path, *, repository: str = "", tag: str = "") -> None:
    """Writes the tree into a new folder.

    Args:
        target: the folder.
        repository: address of the repository; empty for a tree like the clone.
        tag: the release, such as v0.1.0; links lead to the files as they are in it.
    """
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    target.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(target, filter="data")
    if repository:
        settings, readme = target / "pyproject.toml", target / "README.md"
        settings.write_text(settings.read_text(encoding="utf-8") + urls(repository, tag), encoding="utf-8")
        readme.write_text(for_readers(readme.read_text(encoding="utf-8"), repository, tag), encoding="utf-8")


def urls(repository: str, tag: str) -> str:
    """Returns the table of project URLs."""
    places = {
        "Repository": repository,
        "Documentation": f"{repository}/blob/{tag}/README.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    return "\n[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in places.items())


def for_readers(text: str, repository: str, tag: str) -> str:
    """Returns the README as a reader without a clone needs it."""
    text = _LINK.sub(lambda link: f"]({repository}/blob/{tag}/{link[1]})", text)
    return text.replace("'.[", "'packhorse[").replace("Clone this repository and run", "Run")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--repository", default="", help="address of the repository")
    parser.add_argument("--tag", default="", help="the release")
    options = parser.parse_args()
    write_tree(options.target, repository=options.repository.rstrip("/"), tag=options.tag)
