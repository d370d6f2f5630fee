"""The Helm chart: valid Kubernetes for every value that changes something, and in agreement with the program.

Owns what the chart makes of its values. Leaves what it shares with the image and with Compose to `test_deploy`.
"""

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from tests.deploy.chart import (
    CHART,
    VERSIONS,
    container,
    deployment,
    environment,
    loaded,
    only,
    pod,
    render,
    validate,
)

from packhorse.proof.commands.doctor import command as doctor

CUSTOM = {"ServiceMonitor", "PrometheusRule", "Certificate", "RayJob"}
"""Kinds of operators, of which Kubernetes itself has no schema."""

TLS = {"tls": {"secret": "packhorse-tls"}}
CERT_MANAGER = {"tls": {"certManager": {"enabled": True, "issuer": {"name": "internal"}}}}
PREPARATION = {
    "preparation": {"enabled": True, "image": "packhorse-prepare:0.1.0", "arguments": ["--input", "/data/it's.idx"]}
}

DIGEST = f"sha256:{'a' * 64}"

VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"image": {"repository": "example.com/p", "tag": "7"}}, "example.com/p:7"),
    "pull-policy": ({"image": {"pullPolicy": "Always"}}, '"imagePullPolicy": "Always"'),
    "pull-secrets": ({"image": {"pullSecrets": ["registry"]}}, '"imagePullSecrets": [{"name": "registry"}]'),
    "replicas": ({"replicas": 5}, '"replicas": 5'),
    "max-streams": ({"server": {"maxStreams": 9000}}, '"value": "9000"'),
    "grace": ({"server": {"graceSeconds": 300}}, '"terminationGracePeriodSeconds": 310'),
    "log-format": ({"server": {"logFormat": "text"}}, '"name": "PACKHORSE_LOG_FORMAT", "value": "text"'),
    "environment": (
        {"server": {"environment": {"PACKHORSE_PROCESSES": 4}}},
        '"name": "PACKHORSE_PROCESSES", "value": "4"',
    ),
    "resources": ({"resources": {"limits": {"memory": "9Gi"}}}, '"memory": "9Gi"'),
    "claim": ({"data": {"claim": "corpora"}}, '"claimName": "corpora"'),
    "bucket": (
        {"data": {"bucket": {"source": "store:training/datasets", "secret": "store", "size": "7Gi"}}},
        '"args": ["copy", "store:training/datasets", "/data"',
    ),
    "tls": (TLS, '"secretName": "packhorse-tls"'),
    "client-certificates": (
        {"tls": {"secret": "packhorse-tls", "requireClientCertificate": True}},
        '"PACKHORSE_TLS_CLIENT_CA"',
    ),
    "cert-manager": (CERT_MANAGER, '"issuerRef": {"name": "internal", "kind": "ClusterIssuer"}'),
    "tokens": ({"tokens": {"secret": "tokens"}}, '"PACKHORSE_TOKEN_FILE"'),
    "corpus": ({"corpus": {"tokens": "auto", "claim": "corpus"}}, '"PACKHORSE_TOKENS"'),
    "budget": ({"podDisruptionBudget": {"maxUnavailable": "50%"}}, '"maxUnavailable": "50%"'),
    "digest": ({"image": {"digest": DIGEST}}, f"packhorse:0.1.0@{DIGEST}"),
    "cluster-user": ({"runAsUser": 2001}, '"fsGroup": 2001'),
    "autoscaling": ({"autoscaling": {"enabled": True, "maxReplicas": 3}}, '"maxReplicas": 3'),
    "network-policy": (
        {"networkPolicy": {"enabled": True, "trainers": [{"podSelector": {"matchLabels": {"role": "trainer"}}}]}},
        '"role": "trainer"',
    ),
    "service-monitor": ({"serviceMonitor": {"enabled": True, "labels": {"release": "prom"}}}, '"release": "prom"'),
    "monitor-tls": (
        {**TLS, "serviceMonitor": {"enabled": True}, "tokens": {"secret": "tokens"}},
        '"scheme": "https", "tlsConfig"',
    ),
    "rules": ({"prometheusRule": {"enabled": True}}, '"alert": "PackhorseServerDown"'),
    "dashboard": ({"dashboard": {"enabled": True}}, '"grafana_dashboard": "1"'),
    "job": (PREPARATION, '"args": ["prepare", "--input", "/data/it\'s.idx"]'),
    "job-place": (
        {"preparation": {**PREPARATION["preparation"], "nodeSelector": {"disk": "fast"}, "keepSeconds": 60}},
        '"nodeSelector": {"disk": "fast"}',
    ),
    "ray": (
        {"preparation": {**PREPARATION["preparation"], "engine": "ray", "workers": 16}},
        '"maxReplicas": 16',
    ),
    "node-selector": ({"nodeSelector": {"pool": "data"}}, '"nodeSelector": {"pool": "data"}'),
    "tolerations": ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, '"tolerations": [{"key": "gpu"'),
    "affinity": ({"affinity": {"nodeAffinity": {}}}, '"affinity": {"nodeAffinity": {}}'),
    "pod-labels": ({"podLabels": {"team": "data"}}, '"team": "data"'),
    "pod-annotations": ({"podAnnotations": {"note": "a"}}, '"note": "a"'),
}
"""Name → values, and what only they bring into the manifests (as JSON)."""


@pytest.fixture(params=VALUES, ids=str)
def values(request: pytest.FixtureRequest) -> tuple[dict[str, Any], str]:
    return VALUES[request.param]


def as_text(manifests: list[dict[str, Any]]) -> str:
    return json.dumps(manifests)


def pods_of(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every pod that some manifests start."""
    for each in manifests:
        if each["kind"] in ("Deployment", "Job"):
            yield each["spec"]["template"]["spec"]
        elif each["kind"] == "RayJob":
            cluster = each["spec"]["rayClusterSpec"]
            yield from (group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]))


def test_a_value_changes_what_it_says(values: tuple[dict[str, Any], str]) -> None:
    given, expected = values
    assert expected in as_text(render(given))
    assert expected not in as_text(render())


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid_kubernetes(version: str, values: tuple[dict[str, Any], str]) -> None:
    for manifest in [*render(), *render(values[0])]:
        if manifest["kind"] not in CUSTOM:
            validate(manifest, version)


def test_the_check_of_manifests_has_teeth() -> None:
    import kubernetes_validate

    manifest = deployment()
    manifest["spec"]["template"]["spec"]["containers"][0]["readinessProbes"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(manifest, VERSIONS[-1])


def test_pods_meet_the_restricted_profile(values: tuple[dict[str, Any], str]) -> None:
    for spec in pods_of(render(values[0])):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for each in [*spec.get("initContainers", []), *spec["containers"]]:
            context = each["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            mounted = {mount["name"] for mount in each["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in spec["volumes"]}


def test_every_value_is_documented_and_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(values: dict[str, Any], schema: dict[str, Any], where: str) -> None:
        reference = schema.get("$ref", "").removeprefix("#/definitions/")
        schema = whole["definitions"][reference] if reference else schema
        if "properties" in schema:
            assert values.keys() == schema["properties"].keys() - {"global"}, where
            for name, value in values.items():
                if isinstance(value, dict):
                    check(value, schema["properties"][name], f"{where}.{name}")

    whole = schema
    check(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": "3"}, "replicas"),
        ({"replicas": 0}, "replicas"),
        ({"server": {"environment": {"HTTP_PROXY": "x"}}}, "HTTP_PROXY"),
        ({"data": {"bucket": {"source": "s3://bucket/datasets"}}}, "source"),
        ({"tls": {"certManager": {"enabled": True}}}, "tls.certManager.issuer.name"),
        ({"tls": {}}, "tls.plainText=true"),
        ({"tls": {"requireClientCertificate": True}}, "tls.requireClientCertificate"),
        ({"tls": {"requireClientCertificate": True, "plainText": True}}, "tls.requireClientCertificate"),
        ({"tls": {"certManager": {"issuer": {"name": "internal"}}}}, "tls.certManager.issuer.name"),
        ({"tls": {"plainText": True, "certManager": {"issuer": {"name": "internal"}}}}, "tls.certManager.issuer.name"),
        ({"tls": {"plainText": True, "certManager": {"dnsNames": ["a"]}}}, "tls.certManager.dnsNames"),
        ({"tls": {"secret": "a", "certManager": {"issuer": {"name": "internal"}}}}, "tls.certManager.issuer.name"),
        ({"tls": {"secret": "a", "plainText": True}}, "tls.plainText"),
        ({"server": {"environment": {"PACKHORSE_INSECURE": "1"}}}, "PACKHORSE_INSECURE"),
        ({"image": {"digest": "sha256:12"}}, "digest"),
        ({"podDisruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable"),
        ({"data": {"claim": ""}}, "data.claim"),
        ({"preparation": {"enabled": True}}, "preparation.image"),
        ({"preparation": {"engine": "slurm"}}, "engine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_values_are_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(helm_python.HelmError, match=named):
        render(wrong)


def test_helm_has_nothing_against_the_chart() -> None:
    found = helm_python.lint(CHART)
    assert found["errors"] == []
    assert [each for each in found["messages"] if each["error"] != "icon is recommended"] == []


def test_selectors_meet_the_pods_and_nothing_else() -> None:
    manifests = render({**PREPARATION, "networkPolicy": {"enabled": True}, "serviceMonitor": {"enabled": True}})
    labels = deployment()["spec"]["template"]["metadata"]["labels"].items()
    of_job = only(manifests, "Job")["spec"]["template"]["metadata"]["labels"].items()
    services = [each for each in manifests if each["kind"] == "Service"]
    selectors = [
        *(service["spec"]["selector"] for service in services),
        only(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
        only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels
        assert not selector.items() <= of_job
    monitored = only(manifests, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    assert [each["metadata"]["name"] for each in services if monitored <= each["metadata"]["labels"].items()] == [
        "packhorse-metrics"
    ]


def test_services_lead_to_the_ports_of_the_container() -> None:
    services = [each["spec"] for each in render() if each["kind"] == "Service"]
    assert {service["clusterIP"] for service in services} == {"None"}
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert {port["targetPort"]: port["port"] for service in services for port in service["ports"]} == ports


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_a_node_can_be_drained(replicas: int) -> None:
    budget = only(render({"replicas": replicas}), "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget


def test_no_number_is_written_as_a_float() -> None:
    many = 20_000_000
    values = {
        "replicas": many,
        "server": {"maxStreams": many, "graceSeconds": 86_400, "environment": {"PACKHORSE_PROCESSES": many}},
        "runAsUser": many,
        "podDisruptionBudget": {"maxUnavailable": many},
        "autoscaling": {"enabled": True, "minReplicas": many, "maxReplicas": many},
        "tolerations": [{"key": "gpu", "tolerationSeconds": many}],
        "resources": {"limits": {"memory": many}},
        "preparation": {**PREPARATION["preparation"], "keepSeconds": many, "resources": {"limits": {"memory": many}}},
    }
    of_ray = {**values, "preparation": {**values["preparation"], "engine": "ray", "workers": many}}
    for each in (values, of_ray):
        text = "\n".join(loaded().render(values={"tls": {"plainText": True}, **each}, name="packhorse").values())
        assert str(many) in text
        assert "e+0" not in text


def test_another_preparation_is_another_job() -> None:
    def name(engine: str = "job", **preparation: Any) -> str:
        found = render({"preparation": {**PREPARATION["preparation"], "engine": engine, **preparation}})
        [job] = [each for each in found if each["kind"] in ("Job", "RayJob")]
        assert job["spec"]["ttlSecondsAfterFinished"] == 604_800
        return job["metadata"]["name"]

    assert name() == name()
    for engine in ("job", "ray"):
        changed = [{"image": "other"}, {"arguments": ["--resume"]}, {"claim": "c"}, {"secret": "s"}, {"workers": 5}]
        changed += [{"resources": {"limits": {"memory": "1Gi"}}}, {"tolerations": [{"operator": "Exists"}]}]
        names = [name(engine), *(name(engine, **each) for each in changed)]
        assert len(set(names)) == len(names)
        assert all(len(each) <= 63 for each in names)


@pytest.mark.parametrize("engine", ["job", "ray"])
def test_a_preparation_is_pulled_and_placed_like_the_server(engine: str) -> None:
    values = {
        "image": {"pullSecrets": ["registry"]},
        "nodeSelector": {"pool": "data"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "preparation": {**PREPARATION["preparation"], "engine": engine},
    }
    for spec in pods_of(render(values)):
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["nodeSelector"] == {"pool": "data"}
        assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]


def test_a_cluster_may_choose_the_user() -> None:
    for spec in pods_of(render({**PREPARATION, "runAsUser": 0})):
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_the_chart_loads_without_the_repository(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "packhorse", symlinks=True)
    chart = helm_python.Chart.load(tmp_path / "packhorse")
    values = {"tls": {"plainText": True}, "prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
    assert chart.render(values=values, name="p") == loaded().render(values=values, name="p")
    assert not [path for path in CHART.rglob("*") if path.is_symlink()]


def test_autoscaling_decides_on_replicas_alone() -> None:
    assert "replicas" not in deployment({"autoscaling": {"enabled": True}})["spec"]


def test_probes_ask_what_the_kubelet_can_ask() -> None:
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    plain = {name: container()[name]["grpc"] for name in probes}
    assert {probe["port"] for probe in plain.values()} == {50051}
    assert plain["readinessProbe"]["service"] == "packhorse.v1.PackingService"
    for values in (TLS, {"tls": {"secret": "packhorse-tls", "requireClientCertificate": True}}, CERT_MANAGER):
        for name, service in zip(probes, ("", "packhorse.v1.PackingService", ""), strict=True):
            program, *arguments = container(values)[name]["exec"]["command"]
            assert program == "packhorse"
            context = doctor.make_context("doctor", arguments[1:])
            assert context.params["service"] == service
            assert context.params["timeout_seconds"] < container(values)[name]["timeoutSeconds"]
            host = context.params["target"].partition(":")[0]
            assert pod(values)["hostAliases"] == [{"ip": "127.0.0.1", "hostnames": [host]}]
        assert environment(values)["PACKHORSE_CLIENT_CA"] == "/tls/ca.crt"
    known_clients = environment({"tls": {"secret": "packhorse-tls", "requireClientCertificate": True}})
    assert known_clients["PACKHORSE_CLIENT_CERT"] == known_clients["PACKHORSE_TLS_CERT"]
    assert known_clients["PACKHORSE_CLIENT_KEY"] == known_clients["PACKHORSE_TLS_KEY"]


def test_plain_text_is_said_and_tls_ends_it() -> None:
    assert environment()["PACKHORSE_INSECURE"] == "1"
    for values in (TLS, CERT_MANAGER):
        assert "PACKHORSE_INSECURE" not in environment(values)
        mounts = {mount["name"]: mount["mountPath"] for mount in container(values)["volumeMounts"]}
        assert environment(values)["PACKHORSE_TLS_CERT"].startswith(mounts["tls"])
    certificate = only(render(CERT_MANAGER), "Certificate")["spec"]
    [volume] = [each for each in pod(CERT_MANAGER)["volumes"] if each["name"] == "tls"]
    assert volume["secret"]["secretName"] == certificate["secretName"]
    assert certificate["dnsNames"][0] == "packhorse"


def test_rules_and_dashboard_are_those_of_prometheus_and_grafana() -> None:
    manifests = render({"prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}})
    rules = yaml.safe_load((CHART.parents[1] / "prometheus" / "alerts.yml").read_text())
    assert only(manifests, "PrometheusRule")["spec"] == rules
    dashboard = json.loads(only(manifests, "ConfigMap")["data"]["packhorse.json"])
    assert dashboard == json.loads((CHART.parents[1] / "grafana" / "packhorse.json").read_text())
    monitor = only(render({"serviceMonitor": {"enabled": True}}), "ServiceMonitor")["spec"]
    assert monitor["jobLabel"] == "app.kubernetes.io/name", "the alerts ask for job packhorse"


def test_ray_gets_the_arguments_as_the_shell_reads_them() -> None:
    values = {"preparation": {**PREPARATION["preparation"], "engine": "ray", "arguments": ["--output", "/data/a b"]}}
    job = only(render(values), "RayJob")["spec"]
    assert job["entrypoint"] == "packhorse prepare --engine ray '--output' '/data/a b'"
    arguments = ["--input", "/data/it's", 'a "b"', "$HOME `c` \\ #", "", "ü"]
    values["preparation"]["arguments"] = arguments
    assert shlex.split(only(render(values), "RayJob")["spec"]["entrypoint"])[4:] == arguments
    [group] = job["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 4


def test_releases_beside_each_other_have_names_of_their_own() -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in render(name="team-a")}
    assert ("Deployment", "team-a-packhorse") in names
    assert not names & {(each["kind"], each["metadata"]["name"]) for each in render(name="team-b")}
