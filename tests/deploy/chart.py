"""The Helm chart, rendered as Helm renders it."""

from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "packhorse"


@cache
def loaded() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def render(values: dict[str, Any] | None = None, *, name: str = "packhorse") -> list[dict[str, Any]]:
    """Returns every manifest that the chart makes of these values; with `tls` left out, of plain text."""
    files = loaded().render(values={"tls": {"plainText": True}, **(values or {})}, name=name)
    texts = (text for path, text in files.items() if path.endswith(".yaml"))
    return [each for text in texts for each in yaml.safe_load_all(text) if each is not None]


def only(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Returns the one manifest of a kind."""
    [found] = [each for each in manifests if each["kind"] == kind]
    return found


def deployment(values: dict[str, Any] | None = None) -> dict[str, Any]:
    return only(render(values), "Deployment")


def pod(values: dict[str, Any] | None = None) -> dict[str, Any]:
    return deployment(values)["spec"]["template"]["spec"]


def container(values: dict[str, Any] | None = None) -> dict[str, Any]:
    [server] = pod(values)["containers"]
    return server


def environment(values: dict[str, Any] | None = None) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container(values)["env"]}
