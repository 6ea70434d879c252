"""A real mount that writes down what it saw, and the trace that the simulator makes of it."""

from __future__ import annotations

import os

import pytest
from pair import Pair, run

from bench.replay.recorded import read_trace
from bench.replay.runs import Bench, world_for

pytestmark = pytest.mark.mount

MIB = 1 << 20


def test_a_mount_records_what_was_read_and_the_simulator_runs_it(pair: Pair) -> None:
    sizes = {"one.bin": 6 * MIB, "two.bin": 3 * MIB + 7}
    for name, size_bytes in sizes.items():
        (pair.data / name).write_bytes(os.urandom(size_bytes))
    path = pair.work_dir / "seen.trace"
    spoke = pair.spoke(pair.hub().address, extra=["--record", str(path), "--no-passthrough"])
    for name in sizes:
        assert (spoke.mountpoint / name).read_bytes() == (pair.data / name).read_bytes()
    facts = spoke.facts()["reads"]
    assert run("spoke.cli", "umount", str(spoke.mountpoint)).returncode == 0
    trace = read_trace(path)
    assert {file.path.decode(): file.size_bytes for file in trace.files} == sizes
    assert trace.read_count == facts["hit"] + facts["late"] + facts["miss"]
    assert trace.read_bytes == sum(sizes.values())
    bench = Bench(trace, world_for(trace, 0.06, 125e6, 2.0), 1)
    reports = {policy: bench.run(policy) for policy in ("none", "planner", "oracle")}
    assert all(report.reads == trace.read_count for report in reports.values())
    assert reports["oracle"].delay_s <= reports["planner"].delay_s <= reports["none"].delay_s


def test_a_trace_is_never_overwritten(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"x")
    path = pair.work_dir / "seen.trace"
    path.write_text("mine")
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    done = run(
        "spoke.cli", "mount", str(mountpoint), "--hub", pair.hub().address, "--dataset", "data",
        "--cache-dir", str(pair.work_dir / "cache"), "--metrics", "127.0.0.1:0", "--record", str(path),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "exists already" in done.stderr
    assert path.read_text() == "mine"
