"""A job in a mount namespace of its own, as in a container: it sees a mount that is made anew after the spoke died, if what it
was given is the directory above the mount (deploy/kubernetes/jobs/volume.yaml)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pair import Pair

from spoke.fuse.passthrough import has_admin_capability

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mount,
    pytest.mark.skipif(
        not has_admin_capability() or shutil.which("unshare") is None, reason="needs CAP_SYS_ADMIN and unshare"
    ),
]

JOB = """
mount --rbind "$1" "$2" && mount --make-rslave "$2" && echo begun
while read -r path; do sha256sum "$2/$path" 2>&1 || true; done
"""


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory whose mounts other namespaces hear of, as the root of a host with systemd is."""
    directory = tmp_path / "host"
    directory.mkdir()
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    subprocess.run(["mount", "--make-rshared", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=False)


class Job:
    def __init__(self, source: Path, target: Path) -> None:
        target.mkdir()
        self.popen = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "slave", "sh", "-c", JOB, "job", str(source), str(target)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        assert self.line() == "begun"

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def digest(self, path: str) -> str:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{path}\n")
        return self.line().split()[0]

    def close(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.wait(10)
        self.popen.stdout.close()


def test_a_running_job_sees_the_mount_of_a_new_spoke(pair: Pair, shared: Path, tmp_path: Path) -> None:
    (pair.data / "f").write_bytes(os.urandom(1 << 20))
    wanted = subprocess.run(
        ["sha256sum", str(pair.data / "f")], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    hub = pair.hub()
    spoke = pair.spoke(hub.address, name="host/c4")
    job = Job(shared, tmp_path / "job")
    only_the_mount = Job(shared / "c4", tmp_path / "job2")
    try:
        assert job.digest("c4/f") == wanted
        assert only_the_mount.digest("f") == wanted
        spoke.kill()
        assert job.digest("c4/f") != wanted
        again = pair.spoke(hub.address, name="host/c4")
        assert job.digest("c4/f") == wanted
        assert only_the_mount.digest("f") != wanted, "then the volume could be the mount itself"
    finally:
        only_the_mount.close()
        job.close()
    again.clean_up()
