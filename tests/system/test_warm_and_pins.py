"""``warm`` from paths, plans and orders, at a rate, broken off and gone on with; pins over eviction and restarts; exit codes to gate on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pair import Pair, Spoke, ask, eventually, run

from common.errors import HeadraceError

pytestmark = [pytest.mark.mount, pytest.mark.slow]
MIB = 1 << 20


def write(path: Path, size_bytes: int) -> None:
    path.write_bytes(Random(str(path)).randbytes(size_bytes))


def warm(spoke: Spoke, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ask("warm", str(spoke.mountpoint), *arguments)


def received(spoke: Spoke) -> int:
    return spoke.facts()["hub"]["received_bytes"]


def test_a_plan_file_over_a_long_link(pair: Pair, far: Callable[..., str]) -> None:
    write(pair.data / "a", 16 * MIB)
    write(pair.data / "b", 16 * MIB)
    dice = Random(1)
    reads = [(dice.choice("ab"), dice.randrange(16 * MIB - 9000), dice.randrange(1, 9000)) for _ in range(300)]
    hub = pair.hub()
    spoke = pair.spoke(far(hub.address), extra=["--no-prefetch"])
    plan = pair.work_dir / "plan"
    plan.write_text("".join(f"{path} {offset} {length}\n" for path, offset, length in reads))
    before = received(spoke)
    said = warm(spoke, "--plan", str(plan), "--dry-run")
    assert said.returncode == 0
    assert said.stdout.startswith("2 files, ")
    assert "0 B cached" in said.stdout
    assert "it fits" in said.stdout
    assert "no rate was measured yet" in said.stdout, (
        "the names that came are no rate: 26 hours at 259 B/s were said here"
    )
    assert received(spoke) < before + 20_000
    done = warm(spoke, "--plan", str(plan), "--quiet")
    assert done.returncode == 0, done.stderr
    blocks = {
        (path, block) for path, start, size in reads for block in range(start >> 12, (start + size - 1 >> 12) + 1)
    }
    assert f"{len(blocks) * 4096} bytes cached and verified, {len(blocks) * 4096} of them fetched now" in done.stdout
    assert received(spoke) - before < 1.1 * len(blocks) * 4096 + 50_000
    hub.terminate()
    for path, offset, length in reads:
        with (spoke.mountpoint / path).open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert os.pread(file.fileno(), length, offset) == (pair.data / path).read_bytes()[offset : offset + length]
    reads_seen = spoke.facts()["reads"]
    assert reads_seen["miss"] + reads_seen["late"] == 0
    through_stdin = subprocess.run(
        [sys.executable, "-m", "spoke.cli", "warm", str(spoke.mountpoint), "--plan", "-", "--quiet"],
        input=plan.read_text(), text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert through_stdin.returncode == 0, "all is here, so no hub is needed"
    assert "all cached" in through_stdin.stdout


def test_an_order_that_is_followed_and_one_that_is_not(pair: Pair) -> None:
    write(pair.data / "a", 8 * MIB)
    spoke = pair.spoke(pair.hub().address)
    plan = pair.work_dir / "job"
    plan.write_text("".join(f"a {number * 65536} 4096\n" for number in range(64)))
    assert ask("plan", str(spoke.mountpoint), "declare", str(plan)).returncode == 0
    done = warm(spoke, "--order", "job", "--quiet")
    assert done.returncode == 0, done.stderr
    assert f"{64 * 4096} bytes cached and verified" in done.stdout
    none = warm(spoke, "--order", "nosuch")
    assert none.returncode == 2
    assert "no order 'nosuch' is followed" in none.stderr
    unreadable = warm(spoke, "--order", str(plan))
    assert unreadable.returncode == 2
    assert "the order ends inside its header" in unreadable.stderr


def test_it_goes_on_where_it_was_killed_and_keeps_its_rate(pair: Pair, far: Callable[..., str]) -> None:
    write(pair.data / "a", 24 * MIB)
    address = far(pair.hub().address)
    spoke = pair.spoke(address)
    began_s = time.monotonic()
    client = subprocess.Popen(
        [sys.executable, "-m", "spoke.cli", "warm", str(spoke.mountpoint), "--rate", "40mbit", "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    eventually(lambda: received(spoke) > 6 * MIB)
    spoke.settled()
    got_bytes = received(spoke)
    elapsed_s = time.monotonic() - began_s
    assert got_bytes < elapsed_s * 5e6 + 3 * MIB, "no faster than 40 Mbit/s and its first extents"
    assert spoke.facts()["warm"][0]["state"] == "running"
    spoke.kill()
    assert client.wait(20) == 1, "not all is here, so the job may not start"
    client.communicate()
    run("spoke.cli", "umount", str(spoke.mountpoint))
    again = pair.spoke(address)
    done = warm(again, "--quiet")
    assert done.returncode == 0, done.stderr
    assert received(again) < 24 * MIB - got_bytes + 3 * MIB
    assert " cached, " in done.stdout
    assert (again.mountpoint / "a").read_bytes() == (pair.data / "a").read_bytes()


def test_a_command_that_goes_away_ends_its_warm_and_a_background_one_ends_by_itself(
    pair: Pair, far: Callable[..., str]
) -> None:
    write(pair.data / "a", 12 * MIB)
    spoke = pair.spoke(far(pair.hub().address))
    client = subprocess.Popen(
        [sys.executable, "-m", "spoke.cli", "warm", str(spoke.mountpoint), "--rate", "8mbit", "--quiet"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually(lambda: spoke.facts()["warm"] != [])
    client.send_signal(signal.SIGKILL)
    client.wait()
    eventually(lambda: spoke.facts()["warm"][0]["state"] == "broken off")
    left = warm(spoke, "a", "--no-wait", "--quiet")
    assert left.returncode == 0
    assert "begun" in left.stdout
    eventually(lambda: spoke.facts()["warm"][0]["state"] == "done")
    assert spoke.facts()["warm"][0]["verified_bytes"] == 12 * MIB
    assert "warm       a: done" in ask("status", str(spoke.mountpoint)).stdout


def test_what_does_not_fit_or_does_not_come_is_no_exit_code_0(pair: Pair) -> None:
    write(pair.data / "big", 40 * MIB)
    write(pair.data / "small", MIB)
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--cache-size", "20MiB", "--read-timeout", "2s"])
    refused = warm(spoke, "big", "--dry-run")
    assert refused.returncode == 2
    assert "41943040 bytes would have to be cached" in refused.stderr
    assert warm(spoke, "small", "--rate", "0").returncode == 2
    hub.kill()
    without = subprocess.Popen(
        [sys.executable, "-m", "spoke.cli", "warm", str(spoke.mountpoint), "small", "--quiet"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with contextlib.suppress(subprocess.TimeoutExpired):
        assert without.wait(3) == 1
    without.kill()
    without.wait()
    assert spoke.facts()["pins"]["path_count"] == 0


def test_pins_outlive_eviction_and_a_restart(pair: Pair) -> None:
    for number in range(5):
        write(pair.data / f"{number}", 6 * MIB)
    hub = pair.hub()
    small = ["--cache-size", "20MiB"]
    spoke = pair.spoke(hub.address, extra=small)
    pinned = warm(spoke, "0", "1", "--pin", "--quiet")
    assert pinned.returncode == 0, pinned.stderr

    def read_all_the_others() -> None:
        for number in (2, 3, 4, 2, 3, 4):
            assert (spoke.mountpoint / f"{number}").read_bytes() == (pair.data / f"{number}").read_bytes()
            spoke.settled()

    read_all_the_others()
    assert spoke.facts()["cache"]["evicted_bytes"] > 0
    assert "all cached" in warm(spoke, "0", "1", "--dry-run").stdout
    over = warm(spoke, "2", "3", "--pin")
    assert over.returncode == 2
    assert "are pinned for other files" in over.stderr
    refused = ask("pin", str(spoke.mountpoint), "2", "3")
    assert refused.returncode == 2
    assert "at most" in refused.stderr
    assert spoke.kill() != 0
    run("spoke.cli", "umount", str(spoke.mountpoint))
    spoke = pair.spoke(hub.address, extra=small)
    assert spoke.facts()["pins"]["paths"] == ["0", "1"]
    assert "pins       2 paths, 2 files" in ask("status", str(spoke.mountpoint)).stdout
    read_all_the_others()
    assert "all cached" in warm(spoke, "0", "1", "--dry-run").stdout
    listed = ask("pin", str(spoke.mountpoint))
    assert listed.stdout.splitlines()[1:] == ["  0", "  1"]
    assert ask("unpin", str(spoke.mountpoint)).returncode == 2
    assert "pinned: 1 files" in ask("unpin", str(spoke.mountpoint), "0").stdout
    assert ask("unpin", str(spoke.mountpoint), "--all").stdout == "nothing is pinned\n"
    assert json.loads((pair.work_dir / "cache" / "pins" / "data.json").read_text())["paths"] == []


def background(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spoke.cli", "warm", *arguments, "--quiet"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_an_init_container_may_come_before_its_spoke_and_outlive_a_worker(pair: Pair, far: Callable[..., str]) -> None:
    write(pair.data / "a", 8 * MIB)
    mountpoint = str(pair.work_dir / "mnt")
    at_once = ask("warm", mountpoint, "--quiet")
    assert (at_once.returncode, "no spoke" in at_once.stderr) == (2, True)
    early = background(mountpoint, "--wait", "--rate", "20mbit")
    assert early.stderr is not None
    assert "waiting up to 600 s for the spoke" in early.stderr.readline()
    spoke = pair.spoke(far(pair.hub().address))
    eventually(lambda: received(spoke) > 2 * MIB)
    os.kill(spoke.worker_pid(), signal.SIGKILL)
    said, _ = early.communicate(timeout=40)
    assert early.returncode == 0, said
    assert "8388608 bytes cached and verified" in said
    assert (spoke.mountpoint / "a").read_bytes() == (pair.data / "a").read_bytes()


def test_what_the_last_job_read_is_there_on_an_empty_cache(pair: Pair) -> None:
    for name in ("a", "b", "c"):
        write(pair.data / name, 4 * MIB)
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    none = warm(spoke, "--last")
    assert (none.returncode, "no job has read anything" in none.stderr) == (2, True)
    assert (spoke.mountpoint / "a").read_bytes() == (pair.data / "a").read_bytes()  # in order: nothing else learns that
    with (spoke.mountpoint / "b").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 4096, 2 * MIB)
    eventually(lambda: spoke.facts()["learned"]["last_job"]["files"] == 2)
    assert spoke.terminate() == 0
    for found in (pair.work_dir / "cache").iterdir():
        if found.is_dir() and found.name not in ("orders", "names"):
            shutil.rmtree(found)
    spoke = pair.spoke(hub.address, extra=["--no-prefetch"])
    done = warm(spoke, "--last", "--quiet")
    assert done.returncode == 0, done.stderr
    assert f"2 files, {4 * MIB + 65536} bytes cached and verified" in done.stdout
    (pair.data / "b").unlink()
    eventually(lambda: not (spoke.mountpoint / "b").exists())
    assert "1 of its 2 files are gone" in warm(spoke, "--last", "--dry-run").stdout
    assert ask("plan", str(spoke.mountpoint), "reset").returncode == 0
    assert warm(spoke, "--last").returncode == 2


def test_files_that_change_while_they_are_warmed_are_warmed_as_they_are_then(
    pair: Pair, far: Callable[..., str]
) -> None:
    (pair.data / "d").mkdir()
    write(pair.data / "d" / "a", 8 * MIB)
    write(pair.data / "d" / "b", 2 * MIB)
    hub = pair.hub()
    spoke = pair.spoke(far(hub.address))
    changing = background(str(spoke.mountpoint), "d", "--rate", "20mbit")
    eventually(lambda: received(spoke) > 3 * MIB)
    write(pair.data / "new", 3 * MIB)
    (pair.data / "new").rename(pair.data / "d" / "b")
    (pair.data / "d" / "c").write_bytes(b"came late")
    said, complaints = changing.communicate(timeout=40)
    assert changing.returncode == 0, complaints
    assert "files changed at the hub meanwhile" in said
    hub.terminate()
    for name in ("a", "b", "c"):
        assert (spoke.mountpoint / "d" / name).read_bytes() == (pair.data / "d" / name).read_bytes()


def test_a_plan_of_bytes_that_are_not_there_is_no_exit_code_0(pair: Pair) -> None:
    write(pair.data / "a", MIB)
    spoke = pair.spoke(pair.hub().address)
    plan = pair.work_dir / "plan"
    plan.write_text(f"a 0 4096\na {MIB} 4096\n")
    refused = warm(spoke, "--plan", str(plan))
    assert refused.returncode == 2
    assert "1 of 1 files end before a read of them begins" in refused.stderr
    link = pair.work_dir / "link"
    link.symlink_to(spoke.mountpoint)
    plan.write_text(f"\ufeff{link}/a 0 4096\r\n")
    assert warm(spoke, "--plan", str(plan), "--quiet").returncode == 0
    assert ask("warm", str(link), f"{link}/a", "--quiet").returncode == 0


def test_a_hub_that_starts_anew_ends_no_warm(pair: Pair, far: Callable[..., str]) -> None:
    write(pair.data / "a", 8 * MIB)
    hub = pair.hub()
    spoke = pair.spoke(far(hub.address))
    left = warm(spoke, "a", "--no-wait", "--rate", "20mbit")
    assert left.returncode == 0
    eventually(lambda: received(spoke) > 2 * MIB)
    hub.kill()
    eventually(lambda: not spoke.facts()["hub"]["connected"])
    pair.hub(hub.port)
    eventually(lambda: spoke.facts()["warm"][0]["state"] != "running", 30)
    assert spoke.facts()["warm"][0]["state"] == "done"


def test_what_was_left_to_a_spoke_outlives_its_worker_and_not_its_mount(pair: Pair, far: Callable[..., str]) -> None:
    write(pair.data / "a", 8 * MIB)
    address = far(pair.hub().address)
    spoke = pair.spoke(address)
    assert warm(spoke, "a", "--no-wait", "--rate", "20mbit").returncode == 0
    eventually(lambda: received(spoke) > 2 * MIB)
    os.kill(spoke.worker_pid(), signal.SIGKILL)

    def states() -> list[str]:
        with contextlib.suppress(HeadraceError):  # between the two workers
            return [found["state"] for found in spoke.facts()["warm"]]
        return []

    eventually(lambda: states() == ["done"], 30)
    write(pair.data / "b", 2 * MIB)
    eventually((spoke.mountpoint / "b").exists)
    assert warm(spoke, "b", "--no-wait", "--rate", "100kbit").returncode == 0
    assert spoke.terminate() == 0
    assert pair.spoke(address).facts()["warm"] == []
