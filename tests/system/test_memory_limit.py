"""A real mount behind a long link: the spoke's own memory stays under its limit and is given back; a small cache makes progress."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import busy_reader
import pytest
from pair import Pair, Spoke, eventually

MIB = 1 << 20
READER = Path(__file__).with_name("busy_reader.py")

pytestmark = pytest.mark.mount


def anonymous_bytes(spoke: Spoke) -> int:
    status = Path(f"/proc/{spoke.popen.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def run_reader(spoke: Spoke, files: int, file_bytes: int, seconds: float, enough_bytes: int) -> tuple[int, int]:
    """Bytes read, and the most anonymous memory the spoke had meanwhile."""
    reader = subprocess.Popen(
        [
            sys.executable,
            str(READER),
            str(spoke.mountpoint),
            str(files),
            str(file_bytes),
            str(seconds),
            str(enough_bytes),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    most_bytes = 0
    while reader.poll() is None:
        most_bytes = max(most_bytes, anonymous_bytes(spoke))
        time.sleep(0.02)
    assert reader.stdout is not None
    with reader.stdout:
        said = reader.stdout.read()
    assert reader.returncode == 0, "wrong bytes, or an error"
    return int(said), most_bytes


def check_limit(
    pair: Pair,
    far: Callable[..., str],
    limit_mib: int,
    files: int,
    file_bytes: int,
    seconds: float,
    rate: str,
    enough_bytes: int = 1 << 60,
) -> None:
    busy_reader.write_files(pair.data, files, file_bytes)
    spoke = pair.spoke(
        far(pair.hub().address, rate), extra=["--memory-limit", f"{limit_mib}MiB", "--cache-size", "256MiB"]
    )
    before_bytes = anonymous_bytes(spoke)
    read_bytes, most_bytes = run_reader(spoke, files, file_bytes, seconds, enough_bytes)
    facts = spoke.facts()
    memory = facts["memory"]
    print(f"read {read_bytes / MIB:.0f} MiB, at most {most_bytes / MIB:.0f} MiB of {limit_mib}; {memory}")
    assert read_bytes > 64 * MIB
    assert facts["prefetch"]["asked_bytes"] > 0, "prefetch was at work"
    own_bytes = most_bytes - memory["held_bytes"]["names"] - memory["held_bytes"]["index"]
    assert own_bytes < limit_mib * MIB
    assert (memory["limit_bytes"], memory["origin"]) == (limit_mib * MIB, "flag")
    assert set(memory["held_bytes"]) == {
        "names", "index", "flights", "readers", "recent", "buffers", "orders", "process"
    }  # fmt: skip
    assert memory["open_descriptors"] < 1000
    eventually(lambda: anonymous_bytes(spoke) < before_bytes + 64 * MIB, 30)


def test_the_limit_holds_with_a_thousand_open_files(pair: Pair, far: Callable[..., str]) -> None:
    check_limit(pair, far, 128, 1000, 400_000, 60, "2gbit", 80 * MIB)


@pytest.mark.slow
def test_the_default_limit_holds_with_a_thousand_open_files(pair: Pair, far: Callable[..., str]) -> None:
    check_limit(pair, far, 512, 1000, 4_000_000, 40, "4gbit")


def in_order_and_shuffled(pair: Pair, files: int, file_bytes: int, seconds: float, enough_bytes: int) -> None:
    busy_reader.write_files(pair.data, files, file_bytes)
    spoke = pair.spoke(pair.hub().address, extra=["--cache-size", "64MiB", "--cache-free-floor", "1MiB"])
    read_bytes, _ = run_reader(spoke, files, file_bytes, seconds, enough_bytes)
    spoke.settled()
    cache = spoke.facts()["cache"]
    assert read_bytes > 64 * MIB
    assert cache["used_bytes"] <= cache["capacity_bytes"] == 64 * MIB
    assert cache["evicted_bytes"] > 0
    du = subprocess.run(
        ["du", "-sk", str(pair.work_dir / "cache" / "versions")], capture_output=True, text=True, check=False
    )
    assert int(du.stdout.split()[0]) * 1024 <= 64 * MIB + 16 * MIB


def test_a_cache_of_64_mib_makes_progress(pair: Pair) -> None:
    in_order_and_shuffled(pair, 24, 8 * MIB, 60, 200 * MIB)


@pytest.mark.slow
def test_a_cache_of_64_mib_makes_progress_over_a_gib(pair: Pair) -> None:
    in_order_and_shuffled(pair, 128, 8 * MIB, 100, 4096 * MIB)


def test_the_control_groups_limit_is_half_the_default(pair: Pair) -> None:
    """For real, where this host lets us make a group."""
    group = Path("/sys/fs/cgroup/memory") / f"headrace-test-{pair.work_dir.name}"
    if not (group.parent / "memory.limit_in_bytes").exists():
        group = Path("/sys/fs/cgroup") / group.name
        limit_file = "memory.max"
    else:
        limit_file = "memory.limit_in_bytes"
    try:
        group.mkdir()
        (group / limit_file).write_text(str(400 * MIB))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        hub = pair.hub()
        (pair.data / "f").write_bytes(b"x")
        command = (
            "import os,sys; open(sys.argv[1]+'/cgroup.procs','w').write(str(os.getpid()));"
            "os.execv(sys.executable,[sys.executable,'-m','spoke.cli',*sys.argv[2:]])"
        )
        mountpoint = pair.work_dir / "mnt"
        mountpoint.mkdir()
        spoke = subprocess.Popen(
            [sys.executable, "-c", command, str(group), "mount", str(mountpoint), "--hub", hub.address, "--dataset", "data",
             "--cache-dir", str(pair.work_dir / "cache"), "--metrics", "127.0.0.1:0"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert spoke.stdout is not None
            assert spoke.stdout.readline().startswith("mounted ")
            shown = subprocess.run(
                [sys.executable, "-m", "spoke.cli", "status", str(mountpoint), "--json"],
                capture_output=True,
                text=True,
                check=True,
            )
            memory = json.loads(shown.stdout)["memory"]
            assert memory["limit_bytes"] == 200 * MIB
            assert memory["origin"] == f"1/2 of 400 MiB in {group / limit_file}"
        finally:
            spoke.terminate()
            spoke.wait(15)
            assert spoke.stdout is not None
            spoke.stdout.close()
    finally:
        group.rmdir()
