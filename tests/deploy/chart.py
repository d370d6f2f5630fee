"""The Helm chart, rendered as Helm renders it."""

import copy
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "packhorse"

SCHEMAS = Path(importlib.util.find_spec("kubernetes_validate").origin).parent / "kubernetes-json-schema"
VERSIONS = [
    f"1.{minor}" for minor in sorted(int(path.name.split(".")[1]) for path in SCHEMAS.glob("v1.*-local-strict"))[-3:]
]
"""The last three Kubernetes versions that there are schemas of."""


@cache
def loaded() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def render(values: dict[str, Any] | None = None, *, name: str = "packhorse") -> list[dict[str, Any]]:
    """Returns every manifest that the chart makes of these values; with `tls` left out, of plain text."""
    files = loaded().render(values={"tls": {"plainText": True}, **(values or {})}, name=name)
    texts = (text for path, text in files.items() if path.endswith(".yaml"))
    return [copy.deepcopy(each) for text in texts for each in _manifests(text)]


def validate(manifest: dict[str, Any], version: str) -> None:
    """Fails where a manifest is none of that version of Kubernetes."""
    _validate(json.dumps(manifest), version)


@cache
def _validate(manifest: str, version: str) -> None:
    import kubernetes_validate  # takes 1.5 seconds

    kubernetes_validate.validate(json.loads(manifest), version, strict=True)


@cache
def _manifests(text: str) -> list[dict[str, Any]]:
    """Most values leave most files as they are, so that a text comes hundreds of times."""
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each is not None]


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
