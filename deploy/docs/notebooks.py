"""A notebook of the documentation: its cells, run in a fresh process without a kernel, and as Markdown.

    python deploy/docs/notebooks.py client/examples/first_pack.ipynb

Owns what a cell shows: what it printed, and its last value as a picture or as text. Leaves the site to `conf.py`.
"""

import ast
import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def cells_of(path: Path) -> list[tuple[str, str]]:
    """Returns a notebook's cells: each "markdown" or "code", and its text."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def outputs_of(path: Path) -> list[str]:
    """Runs a notebook in a process of its own, and returns what each cell shows, as Markdown.

    Raises:
        RuntimeError: a cell fails.
    """
    done = subprocess.run([sys.executable, __file__, path], capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        raise RuntimeError(f"{path} cannot be run:\n{done.stderr}")
    outputs: list[str] = json.loads(done.stdout)
    return outputs


def markdown_of(path: Path, outputs: list[str] | None = None) -> str:
    """Returns a notebook as a page, with what its cells show if it is given."""
    parts = []
    for index, (kind, text) in enumerate(cells_of(path)):
        parts.append(f"```python\n{text}\n```" if kind == "code" else text)
        if outputs is not None and outputs[index]:
            parts.append(outputs[index])
    return "\n\n".join(parts) + "\n"


def run(path: Path) -> list[str]:
    """Runs a notebook's code in this process, cell by cell, and returns what each cell shows, as Markdown."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [
        shown_by(text, f"{path.name}, cell {index}", names) if kind == "code" else ""
        for index, (kind, text) in enumerate(cells_of(path))
    ]


def shown_by(code: str, where: str, names: dict[str, Any]) -> str:
    """Runs a cell as a notebook does: what it prints is shown, and its last line if that is an expression."""
    tree, value, printed = ast.parse(code, where), None, io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    picture = getattr(value, "_repr_html_", lambda: None)()
    text = printed.getvalue() + (repr(value) if value is not None and picture is None else "")
    return "\n\n".join([*([f"```text\n{text.rstrip()}\n```"] if text else []), *([picture] if picture else [])])


if __name__ == "__main__":
    json.dump(run(Path(sys.argv[1])), sys.stdout)
