"""A hub that is away from the start, and one that announces the loss of its dataset: neither is believed to be empty."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from pair import Pair, Spoke, ask, eventually, run

pytestmark = pytest.mark.mount


def names(spoke: Spoke) -> list[str]:
    return sorted(os.listdir(spoke.mountpoint))


def suspicious(spoke: Spoke) -> bool:
    return bool(spoke.metrics()["headrace_spoke_hub_suspicious"])


def test_a_spoke_that_never_reached_its_hub_shows_what_it_has_and_nothing_else(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"f" * 100_000)
    (pair.data / "cold").write_bytes(b"c" * 100_000)
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    assert (spoke.mountpoint / "f").read_bytes() == b"f" * 100_000
    spoke.settled()
    assert spoke.terminate() == 0
    hub.kill(signal.SIGKILL)

    spoke = pair.spoke(hub.address, extra=["--read-timeout", "1s"])
    assert names(spoke) == ["cold", "f"]
    assert (spoke.mountpoint / "cold").stat().st_size == 100_000
    assert (spoke.mountpoint / "f").read_bytes() == b"f" * 100_000
    with pytest.raises(OSError) as failed:
        (spoke.mountpoint / "cold").read_bytes()
    assert failed.value.errno == errno.EIO
    assert "NOT LINKED: no link for" in ask("status", str(spoke.mountpoint)).stdout
    assert spoke.terminate() == 0

    # The first start ever: an empty directory would say that the dataset is empty.
    (pair.work_dir / "new").mkdir()
    first = run(
        "spoke.cli", "mount", str(pair.work_dir / "new"), "--hub", hub.address, "--dataset", "data", "--metrics",
        "127.0.0.1:0", "--cache-dir", str(pair.work_dir / "cache2"), "--cache-size", "1GiB", "--connect-timeout", "1s",
    )  # fmt: skip
    assert first.returncode == 2
    assert "no hub within 1 s" in first.stderr
    assert "no names are on disk yet, so there is nothing to show" in first.stderr
    assert not os.path.ismount(pair.work_dir / "new")


def test_a_suspicious_hub_stays_so_over_a_restart_until_it_shows_the_names_or_is_believed(
    pair: Pair, tmp_path: Path
) -> None:
    for number in range(150):
        (pair.data / f"{number:03}").write_bytes(b"%03d" % number * 1000)
    aside = tmp_path / "aside"
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--no-prefetch", "--read-timeout", "20s"])
    everything = names(spoke)
    assert (spoke.mountpoint / "007").read_bytes() == b"007" * 1000
    spoke.settled()

    # All goes, as when a disk was not mounted.
    shutil.copytree(pair.data, aside)
    for path in pair.data.iterdir():
        path.unlink()
    eventually(lambda: suspicious(spoke))
    assert names(spoke) == everything
    assert (spoke.mountpoint / "007").read_bytes() == b"007" * 1000
    for name in ("008", "009", "010"):
        with pytest.raises(OSError) as failed:
            (spoke.mountpoint / name).read_bytes()
        assert failed.value.errno == errno.ESTALE
    told = [json.loads(line) for line in spoke.log().splitlines() if "suspicious, has not got a file" in line]
    assert [line["path"] for line in told] == ["008"], "once, not for each read"

    # Without the hub, after a restart: still so, and there is nothing that could be accepted.
    assert spoke.terminate() == 0
    hub.kill(signal.SIGKILL)
    spoke = pair.spoke(hub.address, extra=["--no-prefetch"])
    assert suspicious(spoke)
    assert names(spoke) == everything
    refused = ask("accept", str(spoke.mountpoint))
    assert refused.returncode == 1
    assert "has not shown its names yet" in refused.stderr

    # The hub is back, as empty as before: now the loss is shown, and stays a question.
    hub = pair.hub(port=hub.port)
    shown = []

    def is_shown() -> bool:
        shown[:] = [ask("accept", str(spoke.mountpoint), "--dry-run")]
        return bool(shown[0].returncode == 0)

    eventually(is_shown, 20)
    assert "lost would be 150 files of 439 KiB, of which 2.93 KiB are cached here" in shown[0].stdout
    assert "    000\n    001\n" in shown[0].stdout
    assert "and 140 more" in shown[0].stdout
    assert suspicious(spoke)
    assert names(spoke) == everything

    # The names come back, and with them the trust.
    for path in aside.iterdir():
        shutil.copy2(path, pair.data)
    eventually(lambda: not suspicious(spoke), 20)
    assert (spoke.mountpoint / "008").read_bytes() == b"008" * 1000

    # Gone again, and this time it is meant.
    for path in pair.data.iterdir():
        path.unlink()
    eventually(lambda: suspicious(spoke))
    assert ask("accept", str(spoke.mountpoint)).returncode == 0
    eventually(lambda: names(spoke) == [])
    assert not suspicious(spoke)
    assert not list((pair.work_dir / "cache" / "names" / "data").glob("suspicious*"))


@pytest.mark.parametrize("flags", [(), ("--workers", "2")], ids=["one-process", "workers"])
def test_a_spoke_says_that_its_hub_holds_the_names(pair: Pair, flags: tuple[str, ...]) -> None:
    (pair.data / "f").write_bytes(b"f" * 1000)
    hub = pair.hub(extra=["--rescan-interval", "1s", *flags])
    spoke = pair.spoke(hub.address)
    assert spoke.facts()["names"]["held"] is None
    away = pair.work_dir / "away"
    pair.data.rename(away)
    eventually(lambda: spoke.facts()["names"]["held"])
    assert "cannot be reached" in spoke.facts()["names"]["held"]["reason"]
    eventually(lambda: spoke.facts()["names"]["held"]["for_s"] > 3)
    assert spoke.metrics()["headrace_spoke_replica_staleness_seconds"] > 3
    shown = ask("status", str(spoke.mountpoint)).stdout
    assert "HELD       the hub holds its names as they were since" in shown
    assert "the hub has held its names as they were for" in " ".join(
        ask("doctor", str(spoke.mountpoint)).stdout.split()
    )
    assert names(spoke) == ["f"]

    (away / "g").write_bytes(b"g")
    away.rename(pair.data)
    eventually(lambda: names(spoke) == ["f", "g"])
    eventually(lambda: spoke.facts()["names"]["held"] is None)
    assert spoke.metrics()["headrace_spoke_replica_staleness_seconds"] < 3
    assert "HELD" not in ask("status", str(spoke.mountpoint)).stdout
    assert spoke.log().count("the hub holds its names as they were") == 1
