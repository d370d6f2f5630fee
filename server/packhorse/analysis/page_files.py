"""The files of the status page, to be served one by one, or as one self-contained HTML file.

Owns reading the folder `page`, and inlining its files. Leaves what the page requests, and how often, to page.js in that
folder, and the server's answers to `status_page`.
"""

import base64
import html
import json
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "page"
_MAIN = "page.js"
"""The script that imports the others."""
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".json": "application/json"}


@cache
def page_files() -> dict[str, tuple[str, bytes]]:
    """Returns the page's files: name → (content type, content).

    Example:
        >>> page_files()["page.js"][0]
        'text/javascript'
    """
    paths = (path for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES)
    return {path.name: (_TYPES[path.suffix], path.read_bytes()) for path in paths}


def html_report(datasets: list[dict[str, Any]]) -> str:
    """Returns the page as one HTML file that holds its scripts, styles and data, and makes no request.

    Example:
        >>> html_report([]).startswith("<!doctype html>")
        True

    Args:
        datasets: from `dataset_facts`, each with `costly_facts` under "costly".
    """
    files = {name: content.decode() for name, (_, content) in page_files().items()}
    scripts = {name: _with_bare_imports(content) for name, content in files.items() if name.endswith(".js")}
    modules = {name: _data_url(content) for name, content in scripts.items() if name != _MAIN}
    status = {"server": None, "activity": None, "datasets": datasets}  # as in status.schema.json
    document = json.dumps(status).replace("<", "\\u003c")  # so that no text in it, such as </script>, ends the element
    head = [
        *(f"<style>{files[name]}</style>" for name in ("uplot.css", "page.css")),
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>',
        f'<script type="application/json" id="document">{document}</script>',
        f'<script type="module">{scripts[_MAIN]}</script>',
    ]
    title = html.escape(", ".join(each["name"] for each in datasets) or "Packhorse")
    begin, _, rest = files["page.html"].partition("<!-- head -->")
    _, _, end = rest.partition("<!-- end of head -->")
    return begin.replace("<title>Packhorse", f"<title>{title}, packed by Packhorse") + "\n".join(head) + end


def _with_bare_imports(script: str) -> str:
    """Rewrites a script's imports of "./table.js" to "table.js", which the import map resolves.

    A script in a data URL has no folder, so a relative import would fail.
    """
    return script.replace('from "./', 'from "')


def _data_url(script: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(script.encode()).decode()
