"""The manifests: valid against the API's schemas where those are installed, and what no schema knows."""

from __future__ import annotations

import copy
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config import load
from spoke.config import SpokeSettings

ROOT = Path(__file__).parents[3] / "deploy/kubernetes"
KUBECTL = shutil.which("kubectl")
HAS_SCHEMAS = importlib.util.find_spec("kubernetes_validate") is not None
MOUNTS = "/var/lib/headrace/mnt"
VERSIONS = ("1.30", "1.34")
"""The oldest and newest that the schemas are asked for."""
CUSTOM = {"PodMonitor", "PyTorchJob", "Kustomization"}


def documents(directory: str) -> list[dict[str, Any]]:
    files = sorted((ROOT / directory).glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


EVERYTHING = [*documents("base"), *documents("jobs"), *documents("overlays/example")]


def of(kind: str) -> dict[str, Any]:
    (found,) = [document for document in EVERYTHING if document["kind"] == kind]
    return found


def templates() -> Iterator[tuple[str, dict[str, Any]]]:
    for document in EVERYTHING:
        if document["kind"] in {"DaemonSet", "Job"}:
            yield document["kind"], document["spec"]["template"]
        if document["kind"] == "PyTorchJob":
            for role, replica in document["spec"]["pytorchReplicaSpecs"].items():
                yield role, replica["template"]


def containers(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]


@pytest.mark.skipif(not HAS_SCHEMAS, reason="the API's schemas are not installed (pip install kubernetes-validate)")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_takes_them(version: str) -> None:
    import kubernetes_validate

    for document in EVERYTHING:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, version, strict=True)
    for role, template in templates():  # of custom resources too: their pods are pods
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower()}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, version, strict=True)
    broken = copy.deepcopy(of("DaemonSet"))
    broken["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privilleged"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
@pytest.mark.parametrize("directory", ["base", "jobs", "overlays/example"])
def test_kustomize_builds_them(directory: str) -> None:
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(ROOT / directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    for document in built:
        if document["kind"] == "DaemonSet" and directory.startswith("overlays"):
            spec = document["spec"]["template"]["spec"]
            assert {container["image"] for container in containers(document["spec"]["template"])} == {
                "images.example/headrace:0.1.0"
            }
            assert {"/mnt/nvme/headrace"} < {volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
            (config,) = [other for other in built if other["kind"] == "ConfigMap"]
            named = {
                source["configMapRef"]["name"]
                for c in containers(document["spec"]["template"])
                for source in c["envFrom"]
            }
            assert named == {config["metadata"]["name"]}


def test_every_volume_that_is_mounted_is_there() -> None:
    for role, template in templates():
        there = {volume["name"] for volume in template["spec"]["volumes"]}
        used = {mount["name"] for container in containers(template) for mount in container["volumeMounts"]}
        assert used == there, role


def test_propagation() -> None:
    """Out of the spoke both ways, into jobs one way; and the directory above the mount, or a new mount never shows."""
    (spoke,) = of("DaemonSet")["spec"]["template"]["spec"]["containers"]
    (mounts,) = [mount for mount in spoke["volumeMounts"] if mount["name"] == "mounts"]
    assert mounts == {"name": "mounts", "mountPath": MOUNTS, "mountPropagation": "Bidirectional"}
    for role, template in templates():
        if role != "DaemonSet":
            data = [m for c in containers(template) for m in c["volumeMounts"] if m["name"] == "data"]
            assert data
            for mount in data:
                assert mount["mountPropagation"] == "HostToContainer"
                assert mount["readOnly"]
                assert "subPath" not in mount
    volumes = {d["metadata"]["name"]: d["spec"] for d in EVERYTHING if d["kind"] == "PersistentVolume"}
    assert volumes["headrace"]["hostPath"]["path"] == MOUNTS
    for volume in volumes.values():
        assert volume["accessModes"] == ["ReadOnlyMany"]


def test_claims_find_their_volumes() -> None:
    volumes = {d["metadata"]["name"]: d["spec"] for d in EVERYTHING if d["kind"] == "PersistentVolume"}
    claims = {d["metadata"]["name"]: d["spec"] for d in EVERYTHING if d["kind"] == "PersistentVolumeClaim"}
    for name, claim in claims.items():
        volume = volumes[claim["volumeName"]]
        assert volume["claimRef"]["name"] == name
        assert volume["storageClassName"] == claim["storageClassName"] != ""
        assert volume["capacity"]["storage"] == claim["resources"]["requests"]["storage"]
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, template in templates()
        for volume in template["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert used == set(claims)


def test_only_the_spoke_is_privileged_and_jobs_fit_the_baseline_level() -> None:
    for role, template in templates():
        for container in containers(template):
            context = container["securityContext"]
            if role == "DaemonSet" and container["name"] == "spoke":
                assert context["privileged"], "Bidirectional propagation needs it"
                continue
            assert not context.get("privileged")
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
        if role != "DaemonSet":
            assert not [volume for volume in template["spec"]["volumes"] if "hostPath" in volume]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(template["spec"])
        assert template["spec"]["automountServiceAccountToken"] is False


def test_the_settings_are_the_spoke_s() -> None:
    """What the pod's environment says is understood by the daemon, without a warning."""
    (generator,) = yaml.safe_load((ROOT / "base/kustomization.yaml").read_text())["configMapGenerator"]
    environ = dict(literal.split("=", 1) for literal in generator["literals"])
    (spoke,) = of("DaemonSet")["spec"]["template"]["spec"]["containers"]
    for variable in spoke["env"]:
        source = variable.get("valueFrom", {})
        key = source.get("configMapKeyRef", {}).get("key")
        environ[variable["name"]] = variable["value"] if not source else environ[key] if key else "node-1"
    loaded = load(SpokeSettings, file=None, environ=environ, flags={})
    assert loaded.warnings == ()
    assert loaded.settings.dataset == "c4"
    assert loaded.settings.identity == "node-1"
    cache, _, _ = str(loaded.settings.cache_dir), loaded.settings.metrics, loaded.settings.hub
    assert cache in {mount["mountPath"] for mount in spoke["volumeMounts"]}
    assert int(loaded.settings.metrics.rpartition(":")[2]) == spoke["ports"][0]["containerPort"]


def test_the_monitor_finds_the_pods_and_names_the_job_as_the_rules_do() -> None:
    monitor, daemons = of("PodMonitor")["spec"], of("DaemonSet")["spec"]
    labels = daemons["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert daemons["selector"]["matchLabels"].items() <= labels.items()
    (spoke,) = daemons["template"]["spec"]["containers"]
    assert monitor["podMetricsEndpoints"][0]["port"] in {port["name"] for port in spoke["ports"]}
    rules = (ROOT.parent / "prometheus/headrace.rules.yml").read_text()
    assert f'job="{labels[monitor["jobLabel"]]}"' in rules


def test_the_warm_gate_speaks_to_the_spoke_of_the_same_path() -> None:
    (gate,) = of("Job")["spec"]["template"]["spec"]["initContainers"]
    assert gate["command"][:2] == ["headrace-spoke", "warm"]
    assert gate["command"][2].startswith(f"{MOUNTS}/")
    assert {mount["mountPath"] for mount in gate["volumeMounts"]} == {MOUNTS, "/run/headrace"}
    (spoke,) = of("DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert spoke["command"][:2] == ["headrace-spoke", "mount"]
    assert spoke["command"][2].startswith(f"{MOUNTS}/")
    for name in ("startupProbe", "readinessProbe"):
        assert "headrace-spoke status" in spoke[name]["exec"]["command"][2]


def test_the_image_copies_what_the_build_needs_and_runs_as_nobody() -> None:
    container = ROOT.parent / "container"
    text = (container / "Dockerfile").read_text()
    sources = {word for line in re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]}
    for source in sources:
        assert (ROOT.parents[1] / source).exists()
        assert f"!{source}" in (container / "Dockerfile.dockerignore").read_text().splitlines()
    named = {"common", "hub", "spoke", "pyproject.toml", "README.md", "LICENSE", "deploy/constraints.txt"}
    assert named == sources
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", text, re.MULTILINE)
