"""The lab: what it leaves behind (nothing), and how it reads what daemons say."""

import math
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from bench import netem
from bench.demo.__main__ import parse
from bench.lab import Lab, LabError, parse_metrics, read_metrics
from bench.link import LinkShape
from bench.path import describe, make_way
from common.errors import UsageError


def test_leaving_ends_detached_processes_and_removes_the_directory() -> None:
    with Lab() as lab:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"],
            env=lab.environ,
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        (lab.directory / "some.log").write_text("x")
    assert process.wait(timeout=10) != 0
    assert not lab.directory.exists()


def test_the_last_words_are_the_ends_of_the_logs(tmp_path: Path) -> None:
    with Lab() as lab:
        lab.logs["hub"] = lab.directory / "hub.log"
        lab.logs["hub"].write_text("".join(f"line {number}\n" for number in range(50)))
        lab.logs["silent"] = lab.directory / "silent.log"
        words = lab.last_words()
    assert "line 49" in words
    assert "line 37" not in words
    assert "silent" not in words


def test_metrics_are_named_by_series() -> None:
    text = (
        "# TYPE headrace_spoke_reads counter\n"
        'headrace_spoke_reads_total{result="hit"} 3.0\n'
        'headrace_spoke_reads_total{result="miss"} 1.0\n'
        "# TYPE headrace_spoke_hub_connected gauge\n"
        "headrace_spoke_hub_connected 1.0\n"
    )
    assert parse_metrics(text) == {
        'headrace_spoke_reads_total{result="hit"}': 3.0,
        'headrace_spoke_reads_total{result="miss"}': 1.0,
        "headrace_spoke_hub_connected": 1.0,
    }


def test_metrics_that_nobody_serves_are_an_error_of_the_lab() -> None:
    with pytest.raises(LabError, match="no metrics at"):
        read_metrics("127.0.0.1:1")


def test_a_hub_that_does_not_start_is_said_with_its_log(tmp_path: Path) -> None:
    with Lab() as lab:
        with pytest.raises(LabError, match="the hub was not ready"):
            lab.start_hub("x", tmp_path / "nowhere", LinkShape(0.0), "proxy")
        assert "nowhere" in lab.last_words()


@pytest.mark.parametrize("number", [0, 1, 63, 64, 16383])
def test_netem_networks_stay_in_the_benchmark_range(number: int) -> None:
    host, steps = netem.commands("hrtest", number, LinkShape(0.060, 125e6, 0.004))
    addresses = [word.partition("/")[0] for step in steps for word in step if word.endswith("/30")]
    assert len(set(addresses)) == 2
    assert host.address == addresses[1]
    assert all(ip_address(address) in ip_network("198.18.0.0/15") for address in addresses)
    assert len({ip_network(f"{address}/30", strict=False) for address in addresses}) == 1
    qdiscs = [" ".join(step) for step in steps if "qdisc" in step]
    assert len(qdiscs) == 2
    assert all("delay 30000us 2000us rate 1000000000bit" in qdisc for qdisc in qdiscs)


def test_auto_always_finds_a_way(tmp_path: Path) -> None:
    with make_way("auto", LinkShape(0.001, 1e6), tmp_path / "log", {}) as way:
        assert way.hub_host


def test_links_are_described_in_words() -> None:
    assert describe(LinkShape(0.060, 125e6)) == "60 ms round trip, 1 Gbit/s"


def test_wrong_flags_of_the_demonstration_are_refused(tmp_path: Path) -> None:
    for wrong in (["--rate", "0gbit"], ["--rtt", "long"], ["--text", str(tmp_path / "none")], ["--batches", "-1"]):
        with pytest.raises(UsageError):
            parse(wrong)
    with pytest.raises(SystemExit) as stopped:
        parse(["--workers", "0"])
    assert stopped.value.code == 2
    chosen = parse(["--small", "--rate", "10mbit"])
    assert chosen.workers == 2
    assert math.isclose(chosen.rate, 1.25e6)
