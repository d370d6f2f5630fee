"""Every benchmark is in their README, with a star where it runs only when named; CONTRIBUTING names real folders."""

import ast
import re

from pages import ROOT


def assigned(name):
    """What a module-level name of the benchmarks' command holds, as its source says."""
    module = ast.parse((ROOT / "tests/benchmarks/run.py").read_text())
    (value,) = (
        node.value for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return [ast.literal_eval(each) for each in (value.keys if isinstance(value, ast.Dict) else value.elts)]


def test_the_table_names_every_benchmark_in_the_order_of_help():
    rows = re.findall(r"^\| `([a-z-]+)`(\*?) \|", (ROOT / "tests/benchmarks/README.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == assigned("BENCHMARKS")
    assert sorted(name for name, star in rows if star) == sorted(assigned("ONLY_WHEN_NAMED"))


def test_the_folders_where_a_new_file_goes_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page[page.index("## Where does a new file go?") :].split("\n## ")[0]
    folders = re.findall(r"`((?:proto|server|client|tests)/[^`]+)`", table)
    folders += [f"client/packhorse/client/{name}" for name in re.findall(r"`…/([a-z]+)`", table)]
    assert len(folders) > 15
    assert not [folder for folder in folders if not (ROOT / folder).exists()]
