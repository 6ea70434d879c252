"""The measurement of a long link: its arithmetic, its flags, its readers."""

import json
import math
import threading
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from bench.lab import Lab
from bench.link import LinkShape
from bench.netem import FarHost, commands, silence
from bench.path import GivenWay, make_way
from bench.quantiles import quantile
from bench.wan import load
from bench.wan.__main__ import check, file_names, make_dataset, parse, probed_name, write_noise
from bench.wan.report import Result, Run, as_json, show, write
from common.errors import HeadraceError, UsageError

MIB = 1 << 20
PROBES = ((0.1, 0.07), (0.2, 0.08))
RUN = Run(1, 0.5, (0, 100, 200, 200, 100), (2.25,), PROBES, 660, 3e-7, 6e-7, 9)


def test_a_quantile_is_a_value_that_was_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert quantile(values, 0.5) == 50
    assert quantile(values, 0.99) == 99
    assert quantile([3.0], 0.99) == 3.0
    assert math.isnan(quantile([], 0.5))


def test_buckets_count_in_proportion() -> None:
    assert RUN.between(0.0, 0.5) == 0
    assert RUN.between(0.5, 1.5) == pytest.approx(300)
    assert RUN.between(0.75, 1.25) == pytest.approx((50 + 100) / 0.5)
    assert RUN.goodput_bytes_per_s == pytest.approx(600 / 2.25)


def test_shares_are_told_before_and_after_the_first_round_trips() -> None:
    result = Result("a link", 0.125, 400.0, [0.05], [0.04], [RUN], "--x")
    shares = result.shares(RUN)
    assert shares["all"] == pytest.approx(600 / 2.25 / 400)
    assert shares["first"] == pytest.approx(300 / 1.5 / 400)
    assert shares["after"] == pytest.approx((200 + 200 * 0 + 100 * 0.5 + 0) / 0.75 / 400, rel=0.01)
    told = as_json(result)
    assert told["runs"][0]["wire_bytes_per_read_byte"] == pytest.approx(1.1)
    assert told["runs"][0]["hub_cpu_s_per_gb"] == pytest.approx(0.5)
    assert told["runs"][0]["loaded"]["p99_to_idle"] == pytest.approx(0.08 / 0.05)


def test_a_link_without_limit_has_no_shares() -> None:
    result = Result("a link", 0.0, math.inf, [0.05], [0.04], [RUN], "")
    assert set(result.shares(RUN).values()) == {None}
    assert json.loads(json.dumps(as_json(result)))["link"]["rate_bytes_per_s"] is None


def test_the_table_and_the_files(tmp_path: Path) -> None:
    result = Result("60 ms round trip", 0.125, 400.0, [0.05], [0.04], [RUN], "")
    console = Console(record=True, width=120)
    show(result, console)
    assert "under load" in console.export_text()
    for path in write(result, tmp_path, "some"):
        assert path.stat().st_size > 0


def test_the_data_do_not_repeat_within_an_extent_and_are_known_by_their_digest(tmp_path: Path) -> None:
    digests = make_dataset(tmp_path, [1, 2], 4 * MIB)
    assert set(digests) == {*file_names(1), *file_names(2)}
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.bin")}
    assert files == {*digests, probed_name(1), probed_name(2)}
    assert {path.parent for path in tmp_path.glob("load*")} == {tmp_path} != {(tmp_path / probed_name(1)).parent}
    assert {path.stat().st_size for path in tmp_path.glob("load2-*")} == {2 * MIB}
    data = (tmp_path / "load1-0.bin").read_bytes()
    assert len({data[start : start + MIB] for start in range(0, len(data), MIB)}) == 4
    facts = load.run([tmp_path / name for name in digests], None, 0, 0, 0.0)
    check(facts, digests)
    with pytest.raises(HeadraceError, match="other bytes"):
        check(facts, {**digests, "load1-0.bin": "0" * 16})


def test_no_load_reads_a_file_of_another() -> None:
    """What one mount read, its pages and its files, is an order at the hub: read by the next one, it would be fetched ahead there."""
    loads = [{*file_names(readers), *file_names(readers, 1), probed_name(readers)} for readers in (1, 2, 8)]
    assert sum(map(len, loads)) == len(set.union(*loads)) == 2 * (1 + 2 + 8) + 3


def test_probers_take_the_next_pages_of_one_order(tmp_path: Path) -> None:
    path = tmp_path / "probed.bin"
    write_noise(path, MIB, Random(1), memoryview(Random(2).randbytes(2 * MIB)))
    pages = load.probe_pages(MIB)
    assert sorted(pages) == list(range(4096, MIB, 4096))
    assert len(load.probe(path, 3, 5, 0.0, 0.0, threading.Event())) == 5
    stop = threading.Event()
    stop.set()
    assert len(load.probe(path, 0, 5, 0.0, 0.0, stop)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        ["--readers", "1,x"],
        ["--readers", "0"],
        ["--readers", "1,8,1"],
        ["--hub-exec", "x"],
        ["--rate", "0bit"],
        ["--seconds", "0"],
        ["--hub-exec", "a", "--spoke-exec", "b", "--hub-address", "c", "--outage", "1s"],
    ],
)
def test_wrong_flags_are_refused(wrong: list[str]) -> None:
    with pytest.raises(UsageError):
        parse(wrong)


def test_sizes_follow_the_rate_and_divide_among_the_readers() -> None:
    arguments = parse(["--rate", "1gbit", "--seconds", "4", "--readers", "1,8,3"])
    assert arguments.size % (24 * MIB) == 0
    assert 4.7e8 < arguments.size <= 5e8


def test_only_netem_loses_packets_and_can_be_silenced(tmp_path: Path) -> None:
    shape = LinkShape(0.01, 1e6, loss=0.001)
    host, steps = commands("hrtest", 1, shape)
    assert any("loss 0.1%" in " ".join(step) for step in steps)
    assert silence(host, on=True)[-1] == "down"
    with pytest.raises(HeadraceError, match="loses no packets"), make_way("proxy", shape, tmp_path / "log", {}):
        pass
    with pytest.raises(ValueError, match="lost packets"):
        LinkShape(0.01, loss=1.0)
    assert isinstance(host, FarHost)


def test_given_ends_are_silenced_by_given_commands() -> None:
    with pytest.raises(HeadraceError, match="needs the commands"):
        GivenWay("x", [], "h").silence(on=True)
    GivenWay("x", [], "h", (["true"], ["false"])).silence(on=True)
    with pytest.raises(HeadraceError, match="false"):
        GivenWay("x", [], "h", (["true"], ["false"])).silence(on=False)


def test_the_proxy_obeys_and_says_so(tmp_path: Path) -> None:
    with Lab() as lab, make_way("proxy", LinkShape(0.0, 1e9), tmp_path / "log", lab.environ) as way:
        way.open(("127.0.0.1", 1))
        way.silence(on=True)
        way.silence(on=False)
