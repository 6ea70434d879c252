"""From a thread id to process, cgroup, pod and rank; ids that are used again, processes that are gone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from common import limits
from spoke.insight.processes import Processes, look
from spoke.insight.who import UNKNOWN, Process, group_of, rank_from

POD = "0f5e3a52-9b1f-4c59-8f2e-3c1d2b4a5e6f"
CONTAINER = "ab" * 32


def test_cgroups_of_pods_services_and_hybrid_hierarchies() -> None:
    path = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
    assert group_of(f"0::{path}\n") == (path, POD, CONTAINER[:12])
    assert group_of("0::/system.slice/job.service\n") == ("/system.slice/job.service", "", "")
    assert group_of(f"12:cpu:/docker/{CONTAINER}\n0::/\n")[2] == CONTAINER[:12]
    assert group_of("") == ("/", "", "")


def test_ranks_are_small_numbers_and_nothing_else() -> None:
    assert [rank_from(text) for text in ("0", "17")] == [0, 17]
    assert {rank_from(text) for text in ("", "-1", "x", "99999999999", None)} == {None}


def test_a_real_process_with_a_rank_and_its_child() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; print(os.getpid(), flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "RANK": "5", "SECRET": "s3cr3t"}
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        found = look(child)
        assert (found.pid, found.rank, found.ancestors[0]) == (child, 5, parent.pid)
        assert found.name.startswith("python")
        assert "s3cr3t" not in repr(found)
        parent.communicate(b"\n")
    assert look(child) is UNKNOWN


def test_nonsense_in_proc_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9/status").write_bytes(b"\xff\xfeTgid\n")
    assert look(9, tmp_path) is UNKNOWN


async def test_an_answer_is_kept_for_a_while_and_looked_at_again_later() -> None:
    now = [0.0]
    seen: list[int] = []
    told = asyncio.Event()

    def see(task_id: int) -> Process:
        seen.append(task_id)
        return Process(task_id, len(seen), f"life {len(seen)}")

    processes = Processes(lambda: now[0], lambda _task_id: told.set(), see)
    try:
        for at_s, name in (
            (0.0, "life 1"),
            (limits.PROCESS_CHECK_S / 2, "life 1"),
            (limits.PROCESS_CHECK_S + 1, "life 2"),
        ):
            now[0] = at_s
            told.clear()
            processes.ask(42)
            if name not in (getattr(processes.known(42), "name", None),):
                assert processes.known(42) is None  # not believed before it was looked at again
                await told.wait()
            known = processes.known(42)
            assert known is not None
            assert known.name == name
        assert processes.known(0) is UNKNOWN
        assert seen == [42, 42]
    finally:
        processes.close()
