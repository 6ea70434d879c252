"""The CloudFormation templates: clean for cfn-lint where it is installed, and the two sides fit each other."""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config import load
from hub.config import DEFAULT_PORT, HubSettings
from spoke.config import SpokeSettings

ROOT = Path(__file__).parents[3] / "deploy"
LINT = shutil.which("cfn-lint", path=f"{Path(sys.executable).parent}") or shutil.which("cfn-lint")


class Loader(yaml.SafeLoader):
    """Short forms of functions (!Ref X) as plain values."""


def _function(loader: Loader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.MappingNode)
    return loader.construct_mapping(node, deep=True)


Loader.add_multi_constructor("!", _function)
HUB, SPOKE = (yaml.load((ROOT / f"aws/{name}.yaml").read_text(), Loader) for name in ("hub", "spoke"))


def user_data(template: dict[str, Any], **more: str) -> str:
    """With the parameters' defaults filled in, as CloudFormation does."""
    resources = template["Resources"]
    found = (
        resources["Hub"]["Properties"]["UserData"]
        if "Hub" in resources
        else resources["SpokeTemplate"]["Properties"]["LaunchTemplateData"]["UserData"]
    )["Fn::Base64"]
    values = {name: str(facts.get("Default", "BUCKET")) for name, facts in template["Parameters"].items()} | more
    return re.sub(r"\$\{([A-Za-z]+)\}", lambda match: values[match[1]], found)


def written(script: str, path: str) -> str:
    (text,) = re.findall(rf"cat >\"?{re.escape(path)}\"? <<TOML\n(.*?)^TOML$", script, re.DOTALL | re.MULTILINE)
    return text


@pytest.mark.skipif(LINT is None, reason="cfn-lint is not installed (pip install cfn-lint)")
def test_cfn_lint_is_silent() -> None:
    done = subprocess.run(
        [str(LINT), "--regions", "us-east-1", "us-west-2", "eu-west-1", "--", str(ROOT / "aws/hub.yaml"),
         str(ROOT / "aws/spoke.yaml")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_the_sides_fit() -> None:
    hub, spoke = ({name: p.get("Default") for name, p in side["Parameters"].items()} for side in (HUB, SPOKE))
    assert hub["VpcCidr"] == spoke["HubCidr"]
    assert spoke["VpcCidr"] == hub["SpokeCidr"]
    assert not ipaddress.ip_network(hub["VpcCidr"]).overlaps(ipaddress.ip_network(spoke["VpcCidr"]))
    for side in (hub, spoke):
        assert ipaddress.ip_network(side["SubnetCidr"]).subnet_of(ipaddress.ip_network(side["VpcCidr"]))
    assert ipaddress.ip_address(hub["HubAddress"]) in ipaddress.ip_network(hub["SubnetCidr"])
    assert spoke["HubAddress"] == f"{hub['HubAddress']}:{DEFAULT_PORT}"


def test_one_port_between_the_two_and_nothing_else_in() -> None:
    ingress = HUB["Resources"]["HubGroup"]["Properties"]["SecurityGroupIngress"]
    assert [(rule["IpProtocol"], rule["FromPort"], rule["ToPort"], rule["CidrIp"]) for rule in ingress] == [
        ("tcp", DEFAULT_PORT, DEFAULT_PORT, "SpokeCidr"),
        ("icmp", 3, 4, "SpokeCidr"),
    ]
    group = SPOKE["Resources"]["SpokeGroup"]["Properties"]
    assert [(rule["IpProtocol"], rule["CidrIp"]) for rule in group["SecurityGroupIngress"]] == [("icmp", "HubCidr")]
    assert {"IpProtocol": "tcp", "FromPort": DEFAULT_PORT, "ToPort": DEFAULT_PORT, "CidrIp": "HubCidr"}.items() <= (
        group["SecurityGroupEgress"][0].items()
    )
    for side, destination in ((HUB, "SpokeCidr"), (SPOKE, "HubCidr")):
        routes = [r["Properties"] for r in side["Resources"].values() if r["Type"] == "AWS::EC2::Route"]
        assert destination in {route["DestinationCidrBlock"] for route in routes if "VpcPeeringConnectionId" in route}


@pytest.mark.parametrize("template", [HUB, SPOKE], ids=["hub", "spoke"])
def test_the_first_boot_is_a_script_that_installs_files_that_are_there(template: dict[str, Any]) -> None:
    script = user_data(template, DatasetVolume="vol-0123")
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    files = set(re.findall(r"\bdeploy/[\w./@-]+", script)) - {"deploy/"}
    assert len(files) >= 4
    for file in files:
        assert (ROOT.parent / file).is_file(), file
    assert "${" not in script
    assert len(script) < 16384, "the most that EC2 takes"


def test_what_the_first_boot_writes_are_settings(tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_text(written(user_data(HUB, DatasetVolume="vol-0123"), "/etc/headrace/hub.toml"))
    hub = load(HubSettings, file=tmp_path / "hub.toml", environ={}, flags={}).settings
    assert hub.listen == HUB["Parameters"]["HubAddress"]["Default"] + f":{DEFAULT_PORT}"
    (tmp_path / "c4.toml").write_text(written(user_data(SPOKE), "/etc/headrace/c4.toml"))
    spoke = load(SpokeSettings, file=tmp_path / "c4.toml", environ={}, flags={}).settings
    assert spoke.dataset in hub.dataset
    assert spoke.cache_dir.is_relative_to("/mnt/nvme/headrace")


def test_the_scripts_parse() -> None:
    subprocess.run(["bash", "-n", str(ROOT / "aws/cache-disk")], check=True, timeout=10)
