"""The Dockerfile, Compose and Prometheus of deploy/: valid, and in agreement with one another and with the program.

Owns what can be checked without a container runtime. Leaves the chart to `test_helm` and the image to `test_wheel`.
"""

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from tests import commands
from tests.deploy.chart import container, deployment, environment, pod
from tests.deploy.test_wheel import CPU

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
HEALTH_SERVICES = {"", "packhorse.v1.PackingService"}

# Read by something other than packhorse: the shell, Python and Numba.
FOREIGN_VARIABLES = {
    "PATH",
    "NUMBA_CACHE_DIR",
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
}


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
    from packhorse.formats.retry_policy import TIMEOUT_VARIABLE

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


def interpolated(name: str) -> str:
    """Returns a file of Compose with its variables at their defaults, and those without one as a path."""
    text = (DEPLOY / name).read_text()
    return re.sub(r"\$\{\w+(?::-([^}]*)|:\?[^}]*)?\}", lambda variable: variable[1] or "/given", text)


def compose_service(name: str) -> dict[str, Any]:
    return yaml.safe_load(interpolated("compose.yaml"))["services"][name]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def alert_rules() -> Iterator[dict[str, Any]]:
    for group in load(DEPLOY / "prometheus" / "alerts.yml")["groups"]:
        yield from (rule for rule in group["rules"] if "alert" in rule)


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


def test_kernels_are_compiled_for_the_processors_that_run_them() -> None:
    build, run = (
        set(re.findall(r"NUMBA_CPU_(?:NAME|FEATURES)=\S+", line))
        for line in dockerfile_logical_lines()
        if line.startswith(("RUN NUMBA", "ENV PATH"))
    )
    assert build == run == {"NUMBA_CPU_NAME=$CPU", 'NUMBA_CPU_FEATURES=""'}
    assert dockerfile_logical_lines().count(f"ARG CPU={CPU['NUMBA_CPU_NAME']}") == 2


def test_image_is_not_root_and_starts_the_server() -> None:
    instructions = [line.split(maxsplit=1) for line in dockerfile_logical_lines()]
    last = dict(instructions)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"]), "a numeric, non-root user, as runAsNonRoot needs"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["ENTRYPOINT"] == '["packhorse"]'
    assert last["CMD"] == '["serve"]'
    assert '"packhorse", "doctor", "--health"' in last["HEALTHCHECK"]
    assert "torch" not in " ".join(dockerfile_logical_lines())


def test_the_image_says_what_it_was_made_from() -> None:
    [labels] = (line for line in dockerfile_logical_lines() if line.startswith("LABEL "))
    for name in ("version", "revision", "source"):
        assert f'org.opencontainers.image.{name}="${name.upper()}"' in labels


def test_health_service_is_the_protos() -> None:
    from packhorse.v1 import packing_pb2

    names = {service.full_name for service in packing_pb2.DESCRIPTOR.services_by_name.values()}
    assert names == HEALTH_SERVICES - {""}


def test_every_variable_is_an_option_of_serve() -> None:
    used = set(dockerfile_environment()) | set(compose_service("packhorse")["environment"]) | set(environment())
    for path in [
        ROOT / "Dockerfile",
        *(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts),
    ]:
        used |= set(re.findall(r"\bPACKHORSE_[A-Z_]+\b", path.read_text()))
    # PACKHORSE_PORT is what Kubernetes would inject, named in a comment; trainers and commands read PACKHORSE_TARGET.
    assert used - FOREIGN_VARIABLES - {"PACKHORSE_PORT", "PACKHORSE_TARGET"} <= serve_variables() | client_variables()


def test_image_compose_and_kubernetes_set_the_same_variables() -> None:
    ours = {name: value for name, value in dockerfile_environment().items() if name.startswith("PACKHORSE_")}
    assert "PACKHORSE_INSECURE" not in ours, "whoever runs the image decides"
    assert compose_service("packhorse")["environment"] == ours | {"PACKHORSE_INSECURE": "1"}
    assert environment() == ours | {"PACKHORSE_INSECURE": "1", "PACKHORSE_LOG_FORMAT": "json"}


def test_ports_agree() -> None:
    environment = dockerfile_environment()
    grpc_port, metrics_port = port_of(environment["PACKHORSE_LISTEN"]), port_of(environment["PACKHORSE_METRICS_LISTEN"])
    instructions = dict(line.split(maxsplit=1) for line in dockerfile_logical_lines())
    assert [int(port) for port in instructions["EXPOSE"].split()] == [grpc_port, metrics_port]
    assert f"127.0.0.1:{grpc_port}" in instructions["HEALTHCHECK"]
    assert [port_of(mapping) for mapping in compose_service("packhorse")["ports"]] == [grpc_port, metrics_port]
    assert [port["containerPort"] for port in container()["ports"]] == [grpc_port, metrics_port]
    assert deployment()["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(metrics_port)
    (job,) = load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"packhorse:{metrics_port}"]}]
    assert "packhorse" in load(DEPLOY / "compose.yaml")["services"]


def test_whoever_stops_the_server_waits_longer_than_its_grace() -> None:
    grace_seconds = float(dockerfile_environment()["PACKHORSE_GRACE_SECONDS"])
    assert pod()["terminationGracePeriodSeconds"] > grace_seconds
    assert float(compose_service("packhorse")["stop_grace_period"].removesuffix("s")) > grace_seconds


def test_data_is_read_only_and_where_the_server_looks() -> None:
    data_root = dockerfile_environment()["PACKHORSE_DATA_ROOT"]
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    assert mounts["data"] == {"name": "data", "mountPath": data_root, "readOnly": True}
    assert compose_service("packhorse")["volumes"] == [f"datasets:{data_root}:ro"]
    assert f"datasets:{data_root}" in compose_service("dataset")["volumes"], "where the demo's dataset is written"


def test_kernel_cache_is_writable_and_starts_from_the_images() -> None:
    folder = dockerfile_environment()["NUMBA_CACHE_DIR"]
    volumes = dict(line.split(maxsplit=1) for line in dockerfile_logical_lines())["VOLUME"]
    assert f'"{folder}"' in volumes
    mounts = {mount["name"]: mount for mount in container()["volumeMounts"]}
    assert mounts["kernel-cache"] == {"name": "kernel-cache", "mountPath": folder}
    (copy,) = pod()["initContainers"]
    assert copy["command"][2:] == [f"{folder}/.", f"{copy['volumeMounts'][0]['mountPath']}/"]
    assert copy["image"] == container()["image"]


def test_compose_services_are_confined() -> None:
    for settings in load(DEPLOY / "compose.yaml")["services"].values():
        assert settings["read_only"] is True
        assert settings["cap_drop"] == ["ALL"]
        assert settings["security_opt"] == ["no-new-privileges:true"]
        assert all(mapping.startswith("127.0.0.1:") for mapping in settings.get("ports", []))


@pytest.mark.parametrize("name", ["compose.yaml", "compose.tls.yaml"])
def test_compose_files_are_valid(name: str) -> None:
    PyCompose.from_yaml(interpolated(name)).validate()


def test_the_check_of_compose_files_has_teeth() -> None:
    with pytest.raises(ValueError, match="read_onli"):
        PyCompose.from_yaml(interpolated("compose.yaml").replace("read_only:", "read_onli:"))


def test_compose_mounts_what_is_there() -> None:
    for name, settings in load(DEPLOY / "compose.yaml")["services"].items():
        for mount in settings.get("volumes", []):
            if mount.startswith("./"):
                assert (DEPLOY / mount.split(":")[0]).exists(), name
    for build in (compose_service("packhorse")["build"], compose_service("dataset")["build"]):
        assert (DEPLOY / build["context"] / "Dockerfile").is_file()
    assert f"AS {compose_service('dataset')['build']['target']}" in (ROOT / "Dockerfile").read_text()


def test_compose_with_tls_names_secrets_that_it_declares() -> None:
    override = yaml.safe_load(interpolated("compose.tls.yaml"))
    mounted = set()
    for settings in override["services"].values():
        assert set(settings["secrets"]) <= override["secrets"].keys()
        mounted |= set(settings["secrets"])
        paths = re.findall(r"/run/secrets/([\w.]+)", str(settings.get("environment", {})))
        assert set(paths) <= set(settings["secrets"])
    assert mounted == override["secrets"].keys()
    prometheus = (DEPLOY / "prometheus" / "prometheus.tls.yml").read_text()
    named = set(re.findall(r"/run/secrets/([\w.]+)", prometheus))
    assert named == set(override["services"]["prometheus"]["secrets"])
    variables = (
        override["services"]["packhorse"]["environment"].keys() | override["services"]["run"]["environment"].keys()
    )
    assert variables <= serve_variables() | client_variables()


def test_grafana_finds_its_dashboard_and_prometheus() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    [provider] = load(provisioning / "dashboards" / "packhorse.yaml")["providers"]
    [source] = load(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    grafana = compose_service("grafana")
    mounts = dict(mount.split(":")[:2] for mount in grafana["volumes"])
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounts["./grafana/packhorse.json"].startswith(provider["options"]["path"])
    assert mounts["./grafana/packhorse.json"] == grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert source["url"] == f"http://prometheus:{port_of(compose_service('prometheus')['ports'][0])}"


def test_the_demos_dataset_is_served(tmp_path: Path, make_server: Any) -> None:
    """The init service's script, as it runs there; then the run's command, for a second."""
    script = f"import runpy; runpy.run_path({str(DEPLOY / 'demo_dataset.py')!r}, run_name='__main__')"
    for _ in range(2):  # the second start finds it
        made = commands.run(tmp_path, code=script)
        assert made.returncode == 0, made.stderr
    command = compose_service("run")["command"]
    with make_server(tmp_path) as server:
        command = [server.target if word == "packhorse:50051" else word for word in command]
        command[command.index("--seconds") + 1] = "1"
        bench = commands.run(*command, "--json")
    assert bench.returncode == 0, bench.stderr
    assert json.loads(bench.stdout)


def test_compose_image_is_the_one_kubernetes_runs() -> None:
    assert compose_service("packhorse")["image"] == container()["image"]
    assert compose_service("run")["image"] == compose_service("packhorse")["image"]
    assert compose_service("prometheus")["depends_on"] == {"packhorse": {"condition": "service_healthy"}}


def test_prometheus_files_are_found_from_compose() -> None:
    (mount,) = (volume for volume in compose_service("prometheus")["volumes"] if volume.endswith(":ro"))
    folder = DEPLOY / mount.split(":")[0]
    for configuration in ("prometheus.yml", "prometheus.tls.yml"):  # the first is what the image reads by default
        assert all((folder / name).is_file() for name in load(folder / configuration)["rule_files"])


def test_alerts_ask_for_metrics_that_the_server_has() -> None:
    from packhorse.server.watching.metrics import metric_names

    rules = [rule for group in load(DEPLOY / "prometheus" / "alerts.yml")["groups"] for rule in group["rules"]]
    asked = {name for rule in rules for name in re.findall(r"\bpackhorse_[a-z_]+\b", rule["expr"])}
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert asked
    assert asked <= metric_names()


def test_the_dashboard_is_written_from_the_code() -> None:
    """deploy/grafana/generate.py refuses a panel of a metric that the server lacks."""
    command = [sys.executable, DEPLOY / "grafana" / "generate.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    dashboard = json.loads((DEPLOY / "grafana" / "packhorse.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    jobs = {job["job_name"] for job in load(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]}
    assert set(re.findall(r'job="([^"]+)"', " ".join(expressions))) == jobs


def test_a_panel_of_a_metric_that_is_gone_is_refused() -> None:
    panel = runpy.run_path(str(DEPLOY / "grafana" / "generate.py"))["panel"]
    with pytest.raises(LookupError, match="'Speed' asks for a metric that the server lacks: packhorse_speed"):
        panel(0, "Speed", "short", {"": 'packhorse_speed{job="packhorse"}'})


def test_readme_names_metrics_that_the_server_has() -> None:
    from packhorse.server.watching.metrics import metric_names

    named = set(re.findall(r"\bpackhorse_[a-z_]+\b", (DEPLOY / "README.md").read_text()))
    assert named
    assert named <= metric_names()


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
    night = (DEPLOY / "guides" / "serving.md").read_text().partition("## At 3 a.m.")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(Packhorse\w+)`", night)) == {rule["alert"] for rule in rules}


def test_every_alert_has_a_case_in_which_it_fires_and_ends() -> None:
    *_, case = load(Path(__file__).parent / "alerts_test.yml")["tests"]
    fires, ends = case["promql_expr_test"]
    names = {name for each in fires["exp_samples"] for name in re.findall(r'alertname="(\w+)"', each["labels"])}
    assert names == {rule["alert"] for rule in alert_rules()}
    assert ends == {"expr": "ALERTS", "eval_time": "65m", "exp_samples": []}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on PATH: apt-get install prometheus has it"
)
def test_alerts_fire_when_they_should_and_not_before() -> None:
    rules = Path(__file__).parent / "alerts_test.yml"
    result = subprocess.run(["promtool", "test", "rules", rules], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_promtool_accepts_configuration_and_rules() -> None:
    for arguments in (
        ["config", "prometheus.yml"],
        ["config", "--syntax-only", "prometheus.tls.yml"],
        ["rules", "alerts.yml"],
    ):
        result = subprocess.run(
            ["promtool", "check", *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
