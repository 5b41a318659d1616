"""The files under deploy/: what they start exists, and who is told to stop gets the time for it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.config.settings import SETTINGS
from perdure.runtime import Settings
from perdure.server.app import routers
from tests.deploy.commands import ROOT, in_document, in_shell, parsed

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
)
PODS = {
    each["metadata"]["name"]: each["spec"]["template"]
    for each in OBJECTS
    if "template" in each.get("spec", {})
}
CONTAINERS = [
    pytest.param(pod, container, id=f"{pod}:{container['name']}")
    for pod, template in PODS.items()
    for container in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
]
OURS = [pytest.param(service, id=name) for name, service in SERVICES.items() if name != "postgres"]
PATHS = {getattr(route, "path", "") for router in routers() for route in router.routes}
PAGES = sorted(
    [ROOT / "README.md", DEPLOY / "README.md"]
    + [ROOT / "docs" / f"{name}.md" for name in ("server", "deployment", "auth", "tutorial", "configuration")]
)
URL = "postgresql://u@127.0.0.1/d"


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", URL)


def image() -> list[list[str]]:
    """The image's instructions, each as its name and the rest."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [line.split(None, 1) for line in lines if line and not line.startswith("#")]


def final() -> dict[str, str]:
    """The last stage's instructions; of several the last."""
    stages = image()
    last = max(n for n, (name, _) in enumerate(stages) if name == "FROM")
    return {name: rest for name, rest in stages[last:]}  # noqa: C416 - they are lists


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(s|m)", text)
    assert found, text
    return int(found[1]) * {"s": 1, "m": 60}[found[2]]


def drain_of(words: list[str]) -> float:
    """How long a process of ours may take with what it has."""
    given = parsed(words).get("drain")
    return Settings().drain if given is None else float(given)


# The image


def test_the_image_is_small_and_nobodys_in_particular() -> None:
    stages = [rest for name, rest in image() if name == "FROM"]
    assert len(stages) == 2
    assert all(stage.startswith("python:3.") and "-slim" in stage for stage in stages)
    last = final()
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    assert "RUN" not in last, "what is built belongs into the first stage"
    assert last["STOPSIGNAL"] == "SIGTERM"


def test_the_image_starts_a_server_without_a_shell() -> None:
    last = final()
    assert json.loads(last["ENTRYPOINT"]) == ["perdure"]
    command = json.loads(last["CMD"])
    assert command[0] == "serve"
    parsed(command)
    check = last["HEALTHCHECK"].partition("CMD")[2]
    (path,) = re.findall(r"http://127\.0\.0\.1:2024(/\w+)", json.loads(check)[2])
    assert path in PATHS
    compile(json.loads(check)[2], "healthcheck", "exec")


def test_what_the_image_copies_and_installs_is_there() -> None:
    for name, rest in image():
        if name == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            for source in sources:
                assert (ROOT / source).exists(), source
                kept = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
                assert any(source.startswith(line[1:]) for line in kept if line.startswith("!")), source
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = re.findall(r"perdure\[([\w,]+)\]", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    assert set(named.split(",")) <= set(extras["optional-dependencies"])
    assert {"server", "postgres"} <= set(named.split(","))


# Compose


@pytest.mark.parametrize("service", OURS)
def test_every_service_starts_what_there_is_and_gets_the_time_to_stop(service: dict[str, Any]) -> None:
    parsed(service["command"])
    if service["command"][0] != "migrate":
        assert seconds(service["stop_grace_period"]) >= drain_of(service["command"]) + 10
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).samefile(
        DEPLOY / "Dockerfile"
    )
    assert "DATABASE_URL" in service["environment"]
    # Only a server answers on the port that the image's health check asks.
    assert service.get("healthcheck", {}).get("disable", False) is (service["command"][0] != "serve")


def test_nothing_starts_before_the_database_is_migrated() -> None:
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["postgres"]["healthcheck"]["test"]
    working = [each for each in SERVICES.values() if each.get("command", [""])[0] in ("serve", "worker")]
    assert len(working) == 3
    for service in working:
        assert service["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_two_servers_accept_and_two_workers_run() -> None:
    servers = [each for each in SERVICES.values() if each.get("command", [""])[0] == "serve"]
    assert [parsed(each["command"])["works"] for each in servers] == [False, False]
    ports = [port.split(":") for each in servers for port in each["ports"]]
    assert len({outer for _, outer, _ in ports}) == 2
    # Nobody is asked who they are there.
    assert {host for host, _, _ in ports} == {"127.0.0.1"}
    worker = SERVICES["worker"]
    assert worker["deploy"]["replicas"] == 2
    assert parsed(worker["command"])["all_tenants"] is True


def test_workers_have_the_graphs_of_the_servers() -> None:
    said = tomllib.loads((DEPLOY / "agent" / "perdure.toml").read_text(encoding="utf-8"))
    commands = [service["command"] for service in SERVICES.values() if "command" in service]
    containers: list[Any] = [param.values[1] for param in CONTAINERS]
    commands += [container["args"] for container in containers]
    workers = [parsed(words) for words in commands if words[0] == "worker"]
    # They name none and no file: both read the one that the image has.
    assert [(list(each["graphs"] or ()), each["config"]) for each in workers] == [([], None)] * 2
    assert list(said["graphs"]) == ["agent"]
    assert said["http"]["host"] == "0.0.0.0"  # noqa: S104 - a container has a network of its own
    assert said["http"]["port"] == int(final()["EXPOSE"])


# Kubernetes


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_every_container_starts_what_there_is_and_can_do_little(pod: str, container: dict[str, Any]) -> None:
    parsed(container["args"])
    spec = PODS[pod]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    held = container["securityContext"]
    assert held["readOnlyRootFilesystem"] is True
    assert held["allowPrivilegeEscalation"] is False
    assert held["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"]
    there = {(each["kind"], each["metadata"]["name"]) for each in OBJECTS}
    for source in container["envFrom"]:
        for kind, named in (("Secret", "secretRef"), ("ConfigMap", "configMapRef")):
            if named in source:
                assert (kind, source[named]["name"]) in there


@pytest.mark.parametrize("pod", sorted(PODS))
def test_a_service_of_the_same_name_sets_nothing(pod: str) -> None:
    assert PODS[pod]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("pod", ["perdure-server", "perdure-worker"])
def test_a_pod_gets_the_time_to_stop_and_waits_for_the_migration(pod: str) -> None:
    spec = PODS[pod]["spec"]
    (container,) = spec["containers"]
    before = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
    assert before[0] == "sleep"
    needed = float(before[1]) + drain_of(container["args"]) + 10
    assert spec["terminationGracePeriodSeconds"] >= needed
    (first,) = spec["initContainers"]
    assert first["args"] == ["migrate", "--check"]
    assert parsed(first["args"])["check"] is True


def test_the_server_is_asked_at_routes_that_there_are() -> None:
    (server,) = PODS["perdure-server"]["spec"]["containers"]
    probes = {name: server[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["path"] for probe in probes.values()} <= PATHS
    assert probes["readinessProbe"]["path"] == "/ready"
    assert probes["livenessProbe"]["path"] == "/live"
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert {probe["port"] for probe in probes.values()} <= set(ports)
    assert ports["http"] == int(final()["EXPOSE"])
    assert parsed(server["args"])["works"] is False


def test_the_worker_is_scraped_at_a_port_that_it_has() -> None:
    (worker,) = PODS["perdure-worker"]["spec"]["containers"]
    told = parsed(worker["args"])
    assert worker["ports"] == [{"name": "metrics", "containerPort": told["metrics_port"]}]
    assert told["metrics_host"] == "0.0.0.0"  # noqa: S104 - a pod has a network of its own


def test_what_is_selected_is_there() -> None:
    labels = {name: template["metadata"]["labels"] for name, template in PODS.items()}
    for each in OBJECTS:
        if each["kind"] == "Deployment":
            assert each["spec"]["selector"]["matchLabels"] == labels[each["metadata"]["name"]]
        if each["kind"] == "PodDisruptionBudget":
            assert each["spec"]["selector"]["matchLabels"] == labels[each["metadata"]["name"]]
        if each["kind"] == "Service":
            assert each["spec"]["selector"] == labels["perdure-server"]
    guarded = [each["metadata"]["name"] for each in OBJECTS if each["kind"] == "PodDisruptionBudget"]
    assert sorted(guarded) == ["perdure-server", "perdure-worker"]


def test_every_variable_is_a_setting() -> None:
    known = {variable for setting in SETTINGS.values() for variable in setting.variables}
    given = {name for each in OBJECTS for part in ("data", "stringData") for name in each.get(part, {})}
    given |= {name for service in SERVICES.values() for name in service.get("environment", {})}
    assert {name for name in given if not name.startswith("POSTGRES_")} <= known
    assert "DATABASE_URL" in given


# What pages say


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists(page: Path) -> None:
    for words in in_document(page):
        if not {"-h", "--help"} & set(words):
            parsed([word.replace("$DATABASE_URL", URL) for word in words])


def test_a_command_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(ValueError, match="no-such-option"):
        parsed(["serve", "--no-such-option"])
    with pytest.raises(ValueError, match="no command"):
        parsed(["threads", "lose"])
    text = (
        "URL=1 perdure serve a:b --dev > log & # perdure no\nperdure migrate x && \\\n  perdure worker a:b\n"
    )
    assert list(in_shell(text)) == [["serve", "a:b", "--dev"], ["migrate", "x"], ["worker", "a:b"]]
