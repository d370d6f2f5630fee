"""CONTRIBUTING.md names every benchmark, and which of them run only when they are named."""

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
    rows = re.findall(r"^\| `([a-z-]+)`(\*?) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == assigned("BENCHMARKS")
    assert sorted(name for name, star in rows if star) == sorted(assigned("ONLY_WHEN_NAMED"))
