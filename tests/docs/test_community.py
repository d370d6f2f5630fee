"""Files that a forge reads: forms that ask for what the commands print, and a citation of the version that is built."""

import re
import tomllib

import pytest
import yaml
from pages import ROOT

FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
KINDS = ("markdown", "textarea", "input", "dropdown", "checkboxes")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_a_forge_wants(path):
    form = yaml.safe_load(path.read_text())
    assert form.keys() == {"name", "description", "labels", "body"}
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids)) > 1
    for field in form["body"]:
        assert field["type"] in KINDS
        assert field["attributes"]["label"]
        assert set(field.get("validations", {})) <= {"required"}


def test_a_report_asks_for_what_the_commands_print():
    from packhorse.cli import COMMANDS

    text = (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()
    named = set(re.findall(r"`packhorse ([a-z]+)", text))
    assert named >= {"doctor", "verify"}
    assert named <= COMMANDS.keys()


def test_the_citation_is_of_this_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited["authors"]


def test_the_agents_page_names_targets_that_there_are():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", (ROOT / "AGENTS.md").read_text()))
    assert len(named) > 4
    assert named <= targets
