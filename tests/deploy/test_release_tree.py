"""What a release is built from: the committed files, with an address that leads somewhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "release_tree.py"
ADDRESS = "https://forge.example/packhorse"


def tree(target: Path, *options: str) -> Path:
    subprocess.run([sys.executable, SCRIPT, target, *options], check=True)
    return target


def committed(name: str) -> str:
    return subprocess.run(["git", "show", f"HEAD:{name}"], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_without_an_address_it_is_what_is_committed(tmp_path: Path) -> None:
    made = tree(tmp_path / "tree")
    for name in ("README.md", "pyproject.toml", "server/packhorse/cli/__init__.py"):
        assert (made / name).read_text(encoding="utf-8") == committed(name)
    assert not (made / ".git").exists()


def test_an_address_is_in_the_metadata_and_in_every_link(tmp_path: Path) -> None:
    made = tree(tmp_path / "tree", "--repository", ADDRESS, "--tag", "v0.1.0")
    urls = tomllib.loads((made / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Repository"] == ADDRESS
    assert urls["Changelog"] == f"{ADDRESS}/blob/v0.1.0/CHANGELOG.md"
    readme = (made / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    for link in links:
        if link.startswith(f"{ADDRESS}/blob/v0.1.0/"):
            assert (made / link.removeprefix(f"{ADDRESS}/blob/v0.1.0/").partition("#")[0]).exists(), link
    assert "pip install 'packhorse[client,prepare]'" in readme
    assert "Clone this repository" not in readme
    assert "'.[" not in readme


@pytest.mark.parametrize(
    ("variables", "said"), [(["TAG=v9.9.9"], "is not the version"), (["TAG=v0.1.0"], "REPOSITORY=")]
)
def test_make_release_wants_the_version_and_an_address(variables: list[str], said: str, tmp_path: Path) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = text[text.index("release: $(STAMP)") : text.index("\nproto: $(STAMP)")]
    first = [line for line in recipe.splitlines()[1:] if "exit 1" in line]
    (tmp_path / "Makefile").write_text("release:\n" + "\n".join(first) + "\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('version = "0.1.0"\n', encoding="utf-8")
    done = subprocess.run(["make", "release", *variables], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
