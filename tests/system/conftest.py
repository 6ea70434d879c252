"""Shared by the tests of whole daemons: where a mount cannot be made, those that need one are skipped with the reason."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pair import END_TIMEOUT_S, Pair, pair_in

from spoke.fuse.mountpoint import fusermount
from spoke.fuse.passthrough import has_admin_capability

DEVICE = "/dev/fuse"


def why_no_mount() -> str:
    """The reason, or an empty string where mounting works."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"{DEVICE} cannot be opened: {error.strerror}"
    if not has_admin_capability() and fusermount() is None:
        return "no right to mount: neither CAP_SYS_ADMIN nor fusermount3"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_mount()
    if reason:
        for item in items:
            if item.get_closest_marker("mount") is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Hubs and spokes of one test; afterwards their data and caches go, their logs stay."""
    with pair_in(tmp_path) as made:
        yield made
    for found in sorted(tmp_path.iterdir()):
        if found.suffix == ".log":  # shown with a failure only
            print(f"--- {found.name}\n{found.read_text(errors='backslashreplace')[-4000:]}")
        if found.is_dir() and not os.path.ismount(found):
            shutil.rmtree(found, ignore_errors=True)


@pytest.fixture
def far() -> Iterator[Callable[..., str]]:
    """Puts a server behind 40 ms and ``rate``: gives the address to go to instead."""
    proxies: list[subprocess.Popen[str]] = []

    def make(address: str, rate: str = "2gbit") -> str:
        proxy = subprocess.Popen(
            [sys.executable, "-m", "bench.delay_proxy", "--target", address, "--rtt", "40ms", "--rate", rate],
            stdout=subprocess.PIPE,
            text=True,
        )
        proxies.append(proxy)
        assert proxy.stdout is not None
        return proxy.stdout.readline().replace(",", " ").split()[2]

    yield make
    for proxy in proxies:
        proxy.terminate()
        proxy.wait(END_TIMEOUT_S)
        assert proxy.stdout is not None
        proxy.stdout.close()


@pytest.fixture
def hangups_count() -> Iterator[None]:
    """What is started hears SIGHUP, also when the tests run under nohup, which has their processes ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
