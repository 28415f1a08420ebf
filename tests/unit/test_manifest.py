"""The deployment under deploy/: it gives the relay no more than it needs, and the relay understands it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from pillarbox.cli.relay import relay
from pillarbox.operations.health import parse_address

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"
POD_IP = "10.1.2.3"


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture
def pod(documents: dict[str, Any]) -> Any:
    return documents["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture
def containers(pod: Any) -> list[Any]:
    return [*pod["containers"], *pod.get("initContainers", [])]


def test_images_are_pinned_by_their_digest(containers: list[Any]) -> None:
    for container in containers:
        assert re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", container["image"])
        assert ":latest" not in container["image"]


def test_nothing_runs_as_root_or_can_become_it(pod: Any, containers: list[Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for container in containers:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in security
        assert "hostPort" not in str(container["ports"])


def test_it_gets_no_token_and_no_variables_of_services(pod: Any) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False


def test_secrets_come_from_secrets(containers: list[Any]) -> None:
    for variable in containers[0]["env"]:
        if variable["name"].startswith("PILLARBOX_"):
            assert "secretKeyRef" in variable["valueFrom"]


def test_probes_are_served_at_the_address_of_the_pod_alone(containers: list[Any], documents: dict[str, Any]) -> None:
    _, command, *arguments = containers[0]["args"]
    context = relay.make_context(command, [word.replace("$(POD_IP)", POD_IP) for word in arguments])
    address, port = parse_address(context.params["http"])

    assert (command, address) == ("relay", POD_IP)
    assert [one["containerPort"] for one in containers[0]["ports"]] == [port]
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in containers[0]["env"]
    policy = documents["NetworkPolicy"]["spec"]
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress"]
    assert all(rule["from"] for rule in policy["ingress"])
