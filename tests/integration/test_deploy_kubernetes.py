"""The manifests by the schemas of Kubernetes, and what they promise in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from nacosdns.config_load import load

if TYPE_CHECKING:
    from nacosdns.config import Config

PLACE = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.28", "1.31", "1.34")
DOCUMENTS = [
    (path.name, document) for path in sorted(PLACE.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())
]


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for _, one in DOCUMENTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


NODE = named("DaemonSet", "nacosdns-node")["spec"]
CLUSTER = named("Deployment", "nacosdns-cluster")["spec"]
PODS = {"node": NODE["template"]["spec"], "cluster": CLUSTER["template"]["spec"]}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return only


def configuration(name: str, tmp_path: Path, **environment: str) -> Config:
    file = tmp_path / "nacosdns.toml"
    file.write_text(named("ConfigMap", f"nacosdns-{name}")["data"]["nacosdns.toml"], encoding="utf-8")
    return load(str(file), environment)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("file", "document"), DOCUMENTS, ids=lambda one: one if isinstance(one, str) else one["kind"])
def test_a_manifest_is_what_kubernetes_takes(file, document, version):
    assert kubernetes_validate.validate(document, version, strict=True) == version


def test_the_schemas_find_a_fault_when_there_is_one():
    wrong = named("DaemonSet", "nacosdns-node") | {"spec": NODE | {"updateStrategi": {}}}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_right_that_it_does_not_need(name):
    pod, ours = PODS[name], container(PODS[name])
    security = pod["securityContext"] | ours["securityContext"]

    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["runAsGroup"] == 10053
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["capabilities"].get("add", []) == (["NET_BIND_SERVICE"] if name == "node" else [])
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert {mount["mountPath"] for mount in ours["volumeMounts"] if not mount.get("readOnly")} == {"/var/lib/nacosdns"}
    assert "privileged" not in (PLACE / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", PODS)
def test_health_rests_on_healthz_and_who_is_asked_on_readyz(name):
    ours = container(PODS[name])

    assert ours["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert ours["livenessProbe"]["httpGet"]["path"] == ours["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert ours["livenessProbe"]["timeoutSeconds"] * ours["livenessProbe"]["failureThreshold"] >= 9
    assert "cpu" not in ours["resources"]["limits"]
    assert {"cpu", "memory"} == set(ours["resources"]["requests"])


def test_images_name_their_versions():
    images = [one["image"] for pod in PODS.values() for one in (*pod.get("initContainers", ()), *pod["containers"])]

    assert all(re.search(r":\d+\.\d+\.\d+$", image) for image in images), images


def test_two_pods_of_a_node_never_live_at_once_and_only_one_node_is_replaced_at_a_time():
    assert PODS["node"]["hostNetwork"] is True
    assert NODE["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert PODS["node"]["priorityClassName"] == "system-node-critical"
    assert PODS["node"]["tolerations"] == [{"operator": "Exists"}]
    assert "ports" not in container(PODS["node"])


def test_a_pod_of_the_cluster_goes_only_when_another_is_ready():
    assert CLUSTER["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert named("PodDisruptionBudget", "nacosdns-cluster")["spec"]["maxUnavailable"] < CLUSTER["replicas"]


def test_the_node_listens_at_the_address_that_its_init_container_makes(tmp_path):
    config = configuration("node", tmp_path, NACOSDNS_WEB_LISTEN="10.0.0.1:9353")
    (address,) = config.server.listen
    script = PODS["node"]["initContainers"][0]["command"][-1]

    assert f"ip addr add {address.partition(':')[0]}/32 dev nacosdns0" in script
    assert config.cache.dir == "/var/lib/nacosdns"
    assert config.forward.upstreams == ("10.96.0.10",)
    assert {"name": "NACOSDNS_WEB_LISTEN", "value": "$(NODE_IP):9353"} in container(PODS["node"])["env"]


def test_the_service_leads_to_the_port_that_the_cluster_listens_on(tmp_path):
    config = configuration("cluster", tmp_path)
    service = named("Service", "nacosdns")["spec"]
    ports = {port["name"]: port for port in container(PODS["cluster"])["ports"]}
    wanted = {f"0.0.0.0:{ports[port['targetPort']]['containerPort']}" for port in service["ports"]}

    assert set(config.server.listen) == wanted
    assert {port["protocol"] for port in service["ports"]} == {"UDP", "TCP"}
    assert service["selector"] == CLUSTER["template"]["metadata"]["labels"] == CLUSTER["selector"]["matchLabels"]
    assert config.server.ready_timeout_s > 3600


def test_the_cluster_dns_asks_the_service_for_our_zone_and_keeps_our_ttl(tmp_path):
    block = named("ConfigMap", "coredns-custom")["data"]["nacos.server"]
    lines = [line.strip() for line in block.splitlines() if not line.strip().startswith("#")]
    zone = configuration("cluster", tmp_path).zones[0].name

    assert lines[0] == f"{zone.rstrip('.')}:53 {{"
    assert f"forward . {named('Service', 'nacosdns')['spec']['clusterIP']} {{" in lines
    assert not [line for line in lines if line.startswith("cache")]
    assert "health_check 1s domain canary.nacosdns.invalid" in lines
    assert block.count("{") == block.count("}")
