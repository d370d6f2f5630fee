"""The Dockerfile and the manifests of deploy/: valid, and in agreement with one another and with the program.

Owns what can be checked without a container runtime. That the image's steps work is test_wheel.py's.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
KUBERNETES_VERSION = "1.34"
MANIFESTS = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
HEALTH_SERVICES = {"", "packhorse.v1.PackingService"}

# Read by something other than packhorse: the shell, Python and Numba.
FOREIGN_VARIABLES = {"PATH", "NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}


def load(path: Path) -> Any:
    """Returns the only document of a YAML file."""
    return yaml.safe_load(path.read_text())


def serve_variables() -> set[str]:
    """Returns the environment variables that `packhorse serve` reads, from the command's own declaration."""
    from packhorse.cli.serve import command

    variables: set[str] = set()
    for parameter in command.params:
        declared = parameter.envvar
        variables |= {declared} if isinstance(declared, str) else set(declared or ())
    return variables


def client_variables() -> set[str]:
    """Returns the environment variables that a client reads."""
    from packhorse.client import Access
    from packhorse.client.transport.access import variable_of
    from packhorse.formats.asking import TIMEOUT_VARIABLE

    return {variable_of(field.name) for field in fields(Access)} - {variable_of("token")} | {TIMEOUT_VARIABLE}


def dockerfile_logical_lines() -> list[str]:
    """Returns the Dockerfile's instructions, comments dropped and continued lines joined."""
    kept = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    return [line.strip() for line in "\n".join(kept).replace("\\\n", " ").splitlines() if line.strip()]


def dockerfile_environment() -> dict[str, str]:
    """Returns the variables that the image sets."""
    assignments: dict[str, str] = {}
    for line in dockerfile_logical_lines():
        if line.startswith("ENV "):
            assignments.update(part.split("=", 1) for part in line.removeprefix("ENV ").split())
    return assignments


def compose_service(name: str) -> dict[str, Any]:
    return load(DEPLOY / "compose.yaml")["services"][name]


def pod() -> dict[str, Any]:
    return load(KUBERNETES / "deployment.yaml")["spec"]["template"]


def container() -> dict[str, Any]:
    (only,) = pod()["spec"]["containers"]
    return only


def kubernetes_environment() -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container()["env"]}


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def alert_rules() -> Iterator[dict[str, Any]]:
    for group in load(DEPLOY / "prometheus" / "alerts.yml")["groups"]:
        yield from group["rules"]


def test_dockerfile_is_hadolint_clean() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_dockerfile_copies_only_what_the_context_holds() -> None:
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {
        source.removeprefix("./")
        for line in dockerfile_logical_lines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_image_is_not_root_and_starts_the_server() -> None:
    instructions = [line.split(maxsplit=1) for line in dockerfile_logical_lines()]
    last = dict(instructions)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"]), "a numeric, non-root user, as runAsNonRoot needs"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["ENTRYPOINT"] == '["packhorse"]'
    assert last["CMD"] == '["serve"]'
    assert '"packhorse", "doctor", "--health"' in last["HEALTHCHECK"]
    assert "torch" not in " ".join(dockerfile_logical_lines())


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_is_valid_kubernetes(path: Path) -> None:
    kubernetes_validate.validate(load(path), KUBERNETES_VERSION, strict=True)


def test_manifest_check_has_teeth() -> None:
    manifest = load(KUBERNETES / "deployment.yaml")
    manifest["spec"]["template"]["spec"]["containers"][0]["readinessProbes"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_kustomization_names_every_manifest() -> None:
    assert load(KUBERNETES / "kustomization.yaml")["resources"] == [path.name for path in MANIFESTS]


def test_kubernetes_selectors_meet_the_pods() -> None:
    labels = pod()["metadata"]["labels"].items()
    assert load(KUBERNETES / "deployment.yaml")["spec"]["selector"]["matchLabels"].items() <= labels
    assert load(KUBERNETES / "service.yaml")["spec"]["selector"].items() <= labels
    assert load(KUBERNETES / "poddisruptionbudget.yaml")["spec"]["selector"]["matchLabels"].items() <= labels
    minimum = load(KUBERNETES / "poddisruptionbudget.yaml")["spec"]["minAvailable"]
    assert minimum < load(KUBERNETES / "deployment.yaml")["spec"]["replicas"], "else no node could ever be drained"


def test_service_is_headless_and_leads_to_container_ports() -> None:
    service = load(KUBERNETES / "service.yaml")["spec"]
    assert service["clusterIP"] == "None"
    container_ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == container_ports


def test_pods_meet_the_restricted_profile() -> None:
    spec = pod()["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in [*spec["initContainers"], *spec["containers"]]:
        context = each["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
    user, group = (
        int(part) for part in dict(line.split(maxsplit=1) for line in dockerfile_logical_lines())["USER"].split(":")
    )
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == (user, group)


def test_probes_ask_the_grpc_port_for_known_services() -> None:
    grpc_port = port_of(kubernetes_environment()["PACKHORSE_LISTEN"])
    probes = {name: container()[name]["grpc"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in probes.values()} == {grpc_port}
    assert {probe.get("service", "") for probe in probes.values()} <= HEALTH_SERVICES
    assert probes["readinessProbe"]["service"] == "packhorse.v1.PackingService"


def test_health_service_is_the_protos() -> None:
    from packhorse.v1 import packing_pb2

    names = {service.full_name for service in packing_pb2.DESCRIPTOR.services_by_name.values()}
    assert names == HEALTH_SERVICES - {""}


def test_every_variable_is_an_option_of_serve() -> None:
    used = (
        set(dockerfile_environment()) | set(compose_service("packhorse")["environment"]) | set(kubernetes_environment())
    )
    for path in [ROOT / "Dockerfile", *(path for path in DEPLOY.rglob("*") if path.is_file())]:
        used |= set(re.findall(r"\bPACKHORSE_[A-Z_]+\b", path.read_text()))
    # The name that Kubernetes would inject, told of in a comment.
    assert used - FOREIGN_VARIABLES - {"PACKHORSE_PORT"} <= serve_variables() | client_variables()


def test_image_compose_and_kubernetes_set_the_same_variables() -> None:
    ours = {name: value for name, value in dockerfile_environment().items() if name.startswith("PACKHORSE_")}
    assert "PACKHORSE_INSECURE" not in ours, "whoever runs the image decides"
    assert compose_service("packhorse")["environment"] == ours | {"PACKHORSE_INSECURE": "1"}
    assert kubernetes_environment() == ours | {"PACKHORSE_INSECURE": "1"}


def test_ports_agree() -> None:
    environment = dockerfile_environment()
    grpc_port, metrics_port = port_of(environment["PACKHORSE_LISTEN"]), port_of(environment["PACKHORSE_METRICS_LISTEN"])
    instructions = dict(line.split(maxsplit=1) for line in dockerfile_logical_lines())
    assert [int(port) for port in instructions["EXPOSE"].split()] == [grpc_port, metrics_port]
    assert f"127.0.0.1:{grpc_port}" in instructions["HEALTHCHECK"]
    assert [port_of(mapping) for mapping in compose_service("packhorse")["ports"]] == [grpc_port, metrics_port]
    assert [port["containerPort"] for port in container()["ports"]] == [grpc_port, metrics_port]
    assert pod()["metadata"]["annotations"]["prometheus.io/port"] == str(metrics_port)
    (job,) = load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"packhorse:{metrics_port}"]}]
    assert "packhorse" in load(DEPLOY / "compose.yaml")["services"]


def test_whoever_stops_the_server_waits_longer_than_its_grace() -> None:
    grace_seconds = float(dockerfile_environment()["PACKHORSE_GRACE_SECONDS"])
    assert pod()["spec"]["terminationGracePeriodSeconds"] > grace_seconds
    assert float(compose_service("packhorse")["stop_grace_period"].removesuffix("s")) > grace_seconds


def test_data_is_read_only_and_where_the_server_looks() -> None:
    data_root = dockerfile_environment()["PACKHORSE_DATA_ROOT"]
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    assert mounts["data"] == {"name": "data", "mountPath": data_root, "readOnly": True}
    (volume,) = compose_service("packhorse")["volumes"]
    assert (volume["target"], volume["read_only"]) == (data_root, True)


def test_kernel_cache_is_writable_and_starts_from_the_images() -> None:
    folder = dockerfile_environment()["NUMBA_CACHE_DIR"]
    volumes = dict(line.split(maxsplit=1) for line in dockerfile_logical_lines())["VOLUME"]
    assert f'"{folder}"' in volumes
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    assert mounts["kernel-cache"] == {"name": "kernel-cache", "mountPath": folder}
    (copy,) = pod()["spec"]["initContainers"]
    assert copy["command"][2:] == [f"{folder}/.", f"{copy['volumeMounts'][0]['mountPath']}/"]
    assert copy["image"] == container()["image"]


@pytest.mark.parametrize("service", ["packhorse", "prometheus"])
def test_compose_services_are_confined(service: str) -> None:
    settings = compose_service(service)
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert all(mapping.startswith("127.0.0.1:") for mapping in settings["ports"])


def test_compose_image_is_the_one_kubernetes_runs() -> None:
    assert compose_service("packhorse")["image"] == container()["image"]
    assert compose_service("prometheus")["depends_on"] == {"packhorse": {"condition": "service_healthy"}}


def test_prometheus_files_are_found_from_compose() -> None:
    (mount,) = (volume for volume in compose_service("prometheus")["volumes"] if volume.endswith(":ro"))
    folder = DEPLOY / mount.split(":")[0]
    assert (folder / "prometheus.yml").is_file(), "the file that the image reads by default"
    assert all((folder / name).is_file() for name in load(folder / "prometheus.yml")["rule_files"])


def test_alerts_ask_for_metrics_that_the_server_has() -> None:
    from packhorse.server.watching.metrics import METRIC_NAMES

    asked = {name for rule in alert_rules() for name in re.findall(r"\bpackhorse_[a-z_]+\b", rule["expr"])}
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert asked
    assert asked <= METRIC_NAMES


def test_the_dashboard_asks_for_metrics_that_the_server_has() -> None:
    from packhorse.server.watching.metrics import METRIC_NAMES

    dashboard = json.loads((DEPLOY / "grafana" / "packhorse.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for each in expressions for name in re.findall(r"\b(?:packhorse|grpc)_[a-z_]+\b", each)}
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked - {"grpc_method", "grpc_status"}}
    assert len(asked) > 10
    assert asked <= METRIC_NAMES
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    jobs = {job["job_name"] for job in load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]}
    assert set(re.findall(r'job="([^"]+)"', " ".join(expressions))) == jobs


def test_readme_names_metrics_that_the_server_has() -> None:
    from packhorse.server.watching.metrics import METRIC_NAMES

    named = set(re.findall(r"\bpackhorse_[a-z_]+\b", (DEPLOY / "README.md").read_text()))
    assert named
    assert named <= METRIC_NAMES


def test_alerts_ask_for_reasons_and_jobs_that_exist() -> None:
    from packhorse.v1 import packing_pb2

    reasons = {name.removeprefix("ERROR_REASON_") for name in packing_pb2.ErrorReason.keys()}  # noqa: SIM118
    expressions = " ".join(rule["expr"] for rule in alert_rules())
    asked = {reason for group in re.findall(r'reason=~?"([^"]+)"', expressions) for reason in group.split("|")}
    assert asked
    assert asked <= reasons
    jobs = {job["job_name"] for job in load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]}
    assert set(re.findall(r'job="([^"]+)"', expressions)) == jobs


def test_every_alert_says_what_to_do() -> None:
    rules = list(alert_rules())
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on PATH: apt-get install prometheus has it"
)
def test_alerts_fire_when_they_should_and_not_before() -> None:
    rules = Path(__file__).parent / "alerts_test.yml"
    result = subprocess.run(["promtool", "test", "rules", rules], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_promtool_accepts_configuration_and_rules() -> None:
    for arguments in (["config", "prometheus.yml"], ["rules", "alerts.yml"]):
        result = subprocess.run(
            ["promtool", "check", *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
