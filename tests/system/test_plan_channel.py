"""Plans on a real mount: a job says what it will read, by ioctl or command, and finds it there; nonsense is answered and shown."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from pair import Pair, Spoke, ask, eventually

from spoke import hints

pytestmark = pytest.mark.mount

MIB = 1024 * 1024
JOB_TIMEOUT_S = 90.0
RECORD_BYTES = 16 * 1024

JOB = """
import json, os, sys, time
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from spoke import hints

local, mounted, how = sys.argv[1:]
RECORD = 16 * 1024
# Windows of a map lie apart, as in a corpus far larger than what is drawn of it: else one fault reads what others would.
STRIDE = 256 * 1024 if how == "mmap" else RECORD


class Records(Dataset):
    def __init__(self, path):
        self.path, self.fd = path, -1
        self.tokens = np.memmap(path, np.uint8, "r")

    def __len__(self):
        return len(self.tokens) // STRIDE

    def __getitem__(self, index):
        if how == "mmap":
            return index, torch.from_numpy(self.tokens[index * STRIDE : index * STRIDE + RECORD].copy())
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDONLY)
            # Else the kernel reads on behind a record whose neighbour it has cached: records that are not due yet.
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        return index, torch.frombuffer(bytearray(os.pread(self.fd, RECORD, index * STRIDE)), dtype=torch.uint8)


def reads():
    with open(f"{mounted}/.headrace/status") as status:
        return json.load(status)["reads"]


ours, theirs = Records(f"{local}/train.bin"), Records(f"{mounted}/train.bin")
sampler = DistributedSampler(theirs, num_replicas=2, rank=1, seed=3)
announced = hints.announce(sampler, hints.windows(f"{mounted}/train.bin", 1, RECORD, STRIDE))
if how == "batches":
    batches = BatchSampler(sampler, 16, False)
    announced = hints.announce(batches, hints.records(f"{mounted}/train.bin", RECORD))
    loader = DataLoader(theirs, batch_sampler=announced, num_workers=2)
else:
    loader = DataLoader(theirs, batch_size=16, sampler=announced, num_workers=2)
assert len(loader) == -(-len(theirs) // 32)
seen = dict.fromkeys(("hit", "late", "miss"), 0)
for epoch in range(2):
    sampler.set_epoch(epoch)
    want = list(sampler)
    got = []
    for number, (indices, records) in enumerate(loader):
        if number == 4:  # the order of an epoch is known when it begins, and not before
            before = reads()
        for index, record in zip(indices.tolist(), records):
            got.append(index)
            assert torch.equal(record, ours[index][1]), index
        time.sleep(0.03 if how == "mmap" else 0.008)  # a step: slower than the link, with READs of 128 KiB too
    assert got == want
    after = reads()
    for kind in seen:
        seen[kind] += after[kind] - before[kind]
said = hints.facts()
assert said["announced_steps"] == 2 * len(want), said
assert said["errors"] == said["refused_messages"] == 0, said
print(json.dumps(seen))
"""


def job(script: str, *arguments: Path | str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write(path: Path, size_bytes: int) -> None:
    path.write_bytes(Random(7).randbytes(size_bytes))


@pytest.mark.torch
@pytest.mark.parametrize("how", ["pread", "mmap", "batches"])
@pytest.mark.slow
def test_a_shuffled_data_loader_finds_what_it_announced(pair: Pair, far: Callable[[str], str], how: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    write(pair.data / "train.bin", (192 if how == "mmap" else 32) * MIB)
    spoke = pair.spoke(far(pair.hub().address))
    seen = json.loads(job(JOB, pair.data, spoke.mountpoint, how))
    total = sum(seen.values())
    assert total > 200
    assert seen["hit"] >= 0.99 * total, (seen, spoke.facts()["plans"], spoke.facts()["prefetch"])
    plans = spoke.facts()["plans"]
    assert plans["taken_steps"] == (768 if how == "mmap" else 2048)
    assert plans["refused_messages"] == {}


RANK_JOB = """
import json, os, sys, time
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler
from spoke import hints

local, mounted, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ["RANK"] = str(rank)


class Records(Dataset):
    fd = -1

    def __len__(self):
        return 1024

    def __getitem__(self, index):
        if self.fd < 0:
            self.fd = os.open(f"{mounted}/train.bin", os.O_RDONLY)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        return index, torch.frombuffer(bytearray(os.pread(self.fd, 8192, index * 8192)), dtype=torch.uint8)


sampler = DistributedSampler(Records(), num_replicas=2, rank=rank, seed=3)
batches = hints.announce(BatchSampler(sampler, 8, False), hints.records(f"{mounted}/train.bin", 8192))
loader = DataLoader(Records(), batch_sampler=batches, num_workers=2, persistent_workers=True)
data = open(f"{local}/train.bin", "rb").read()
epochs = []
for epoch in range(3):
    loader.batch_sampler.sampler.set_epoch(epoch)  # as training loops and their trainers do
    got = []
    for number, (indices, records) in enumerate(loader):
        for index, record in zip(indices.tolist(), records):
            got.append(index)
            assert record.numpy().tobytes() == data[index * 8192 : index * 8192 + 8192], index
        time.sleep(0.005)
        if epoch == 0 and number == 20:
            break  # a job that is broken off, and goes on with the next epoch
    assert got == list(sampler)[: len(got)]
    epochs.append(got)
assert epochs[1] != epochs[2] and sorted(epochs[1]) != sorted(epochs[2]), "set_epoch did not reach the sampler"
print(json.dumps(hints.facts()))
"""


@pytest.mark.torch
@pytest.mark.slow
def test_two_ranks_with_workers_that_stay_and_an_epoch_set_through_the_loader(
    pair: Pair, far: Callable[[str], str]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    write(pair.data / "train.bin", 8 * MIB)
    spoke = pair.spoke(far(pair.hub().address))
    with ThreadPoolExecutor(2) as pool:
        said = [
            json.loads(text) for text in pool.map(lambda rank: job(RANK_JOB, pair.data, spoke.mountpoint, rank), "01")
        ]
    assert all(facts["errors"] == facts["refused_messages"] == 0 for facts in said), said
    reads, plans = spoke.facts()["reads"], spoke.facts()["plans"]
    assert reads["hit"] >= 0.97 * sum(reads[kind] for kind in ("hit", "late", "miss")), reads
    assert plans["taken_steps"] >= 2 * 2 * 512
    assert {plan["name"].split("-")[0] for plan in plans["active"]} == {"rank0", "rank1"}


@pytest.mark.torch
@pytest.mark.slow
def test_a_wrapped_sampler_draws_what_it_would_have_drawn(pair: Pair) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    write(pair.data / "train.bin", 4 * MIB)
    spoke = pair.spoke(pair.hub().address)
    job(
        """
import sys
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler
from spoke import hints

layout = hints.records(f"{sys.argv[1]}/train.bin", 4096)


def drawn(make, wrap):
    torch.manual_seed(11)
    sampler = wrap(make())
    loader = DataLoader(range(1000), batch_size=8, sampler=sampler, num_workers=0)
    epochs = []
    for _ in range(2):
        epochs.append([batch.tolist() for batch in loader])
        epochs.append(torch.rand(3).tolist())
    return epochs


for make in (
    lambda: RandomSampler(range(1000)),
    lambda: RandomSampler(range(1000), replacement=True, num_samples=500),
    lambda: WeightedRandomSampler(torch.ones(1000), 700),
):
    assert drawn(make, lambda sampler: sampler) == drawn(make, lambda sampler: hints.announce(sampler, layout))
assert hints.facts()["announced_steps"] == 2 * 2200, hints.facts()
""",
        spoke.mountpoint,
    )


def control(spoke: Spoke) -> int:
    return os.open(spoke.mountpoint / ".headrace/plan", os.O_RDONLY)


def told(fd: int, data: bytes, command: int | None = None) -> int:
    """The errno of one ioctl, 0 if it was taken."""
    buffer = bytearray(data)
    try:
        fcntl.ioctl(fd, hints._command(len(buffer)) if command is None else command, buffer, True)
    except OSError as error:
        return error.errno or -1
    return 0


def test_nonsense_is_answered_counted_and_shown(pair: Pair) -> None:
    write(pair.data / "f", 5000)
    spoke = pair.spoke(pair.hub().address)
    dice = Random(5)
    fd = control(spoke)
    try:
        assert told(fd, b'{"plan": [' * 1638) == errno.EINVAL
        for _ in range(200):
            assert told(fd, dice.randbytes(dice.randrange(1, 16384))) == errno.EINVAL
        good = hints.pack_steps(1, b"p", 0, [b"f"], [0], [0], [100])
        for _ in range(500):
            spoiled = bytearray(good)
            spoiled[dice.randrange(len(spoiled))] = dice.randrange(256)
            assert told(fd, bytes(spoiled) + bytes(200)) in (
                0, errno.EINVAL, errno.E2BIG, errno.ENOENT, errno.ERANGE, errno.EPROTONOSUPPORT, errno.ENOSPC,
            )  # fmt: skip
        assert told(fd, good, 3 << 30 | len(good) << 16 | ord("H") << 8 | 2) == errno.ENOTTY
        assert told(fd, bytes(16), 3 << 30 | 16 << 16 | ord("X") << 8 | 1) == errno.ENOTTY
        assert told(fd, hints.pack_steps(1, b"q", 0, [b"no"], [0], [0], [1]) + bytes(512)) == errno.ENOENT
        assert told(fd, hints.pack_steps(1, b"q", 0, [b"f"], [0], [5000], [1]) + bytes(512)) == errno.ERANGE
        with pytest.raises(OSError) as caught:
            fcntl.ioctl(fd, 0xC0004801)  # of no size: there is nothing in it
        assert caught.value.errno == errno.EINVAL
    finally:
        os.close(fd)
    facts = spoke.facts()["plans"]
    assert facts["refused_messages"]["bad-plan"] >= 200
    assert facts["last_refusal"]["reason"]
    assert len(facts["active"]) <= 24
    assert spoke.log().count("a plan was refused") <= 8
    assert (spoke.mountpoint / "f").read_bytes() == (pair.data / "f").read_bytes()
    shown = json.loads((spoke.mountpoint / ".headrace/plan").read_bytes())
    assert shown["refused_messages"] == facts["refused_messages"]


def test_plans_by_command(pair: Pair) -> None:
    write(pair.data / "f.bin", 3 * MIB)
    spoke = pair.spoke(pair.hub().address)
    mountpoint = str(spoke.mountpoint)
    plan = pair.work_dir / "reads.txt"
    plan.write_text(
        f'# what comes\nf.bin 0 4096\n{mountpoint}/f.bin 2000000 10\n{{"path": "f.bin", "offset": 9, "length": 1}}\n'
    )
    done = ask("plan", mountpoint, "declare", str(plan))
    assert (done.returncode, done.stdout) == (0, "3 reads declared as reads.txt\n"), done.stderr
    (shown,) = json.loads(ask("plan", mountpoint, "list", "--json").stdout)["active"]
    assert (shown["name"], shown["kept_steps"], shown["complete"]) == ("reads.txt", 3, True)
    assert "reads.txt  0 of 3 steps read" in ask("plan", mountpoint, "list").stdout
    eventually(lambda: spoke.facts()["prefetch"]["asked_bytes"] > 0)
    assert ask("plan", mountpoint, "drop", "reads.txt").stdout == "dropped reads.txt\n"
    done = ask("plan", mountpoint, "drop", "reads.txt")
    assert (done.returncode, "no plan is named" in done.stderr) == (2, True)
    assert ask("plan", mountpoint, "list").stdout.splitlines()[0] == "no plans"


def test_what_is_left_out_is_not_counted_as_declared(pair: Pair) -> None:
    write(pair.data / "f.bin", 3 * MIB)
    spoke = pair.spoke(pair.hub().address)
    plan = pair.work_dir / "reads.txt"
    unknown = "'gone.bin' is no file of the dataset (paths are relative to the mount's root)"
    for text, code, said, why in (
        ("gone.bin 0 9\n", 1, "", f"{unknown}\n1 of 1 read left out\n{plan}: no read of it was declared\n"),
        ("f.bin 0 9\ngone.bin 0 9\n", 0, "1 read declared as reads.txt\n", "left out: 1 unknown-file\n1 of 2 reads left out\n"),
        ("f.bin 0 9999999\n", 0, "1 read declared as reads.txt\n", "left out: 7 past-end\n"),
        ("f.bin 4000000 3000000\nf.bin 3000000 3000000\n", 0, "1 read declared as reads.txt\n",
         "left out: 7 past-end\n1 of 2 reads left out\n"),
        ("f.bin 0 9\n" * 4096 + "gone.bin 0 9\n" * 2, 0, "4096 reads declared as reads.txt\n",
         f"{unknown}\n2 of 4098 reads left out\n"),
    ):  # fmt: skip
        plan.write_text(text)
        done = ask("plan", str(spoke.mountpoint), "declare", str(plan))
        assert (done.returncode, done.stdout, done.stderr.replace("error: ", "")) == (code, said, why), text[:80]


@pytest.mark.slow
def test_plan_files_that_cannot_be(pair: Pair) -> None:
    write(pair.data / "f.bin", 3 * MIB)
    spoke = pair.spoke(pair.hub().address)
    plan = pair.work_dir / "reads.txt"
    for text, code, why in (
        ("f.bin 0 4096\nf.bin here 7\n", 2, "line 2"),
        ("f.bin 0\n", 2, "PATH OFFSET LENGTH"),
        ("{" * 1000 + "\n", 2, "line 1"),
        ("x" * 200_000, 2, "at most"),
        ("/etc/passwd 0 100\n", 2, "not below the mountpoint"),
        ("gone.bin 0 100\n", 1, "no file of the dataset"),
        ("f.bin 0 100\nf.bin 9999999 1\n", 0, "left out: 1 past-end"),
        ("f.bin 0 99999999999\n", 0, "past-end"),
        ("", 2, "no line of it names a read"),
        ("f.bin 0 1000\n" * 140_000, 1, "at most 131072"),
    ):
        plan.write_text(text)
        done = ask("plan", str(spoke.mountpoint), "declare", str(plan))
        assert (done.returncode, why in done.stderr, "Traceback" in done.stderr) == (code, True, False), (
            text[:80],
            done,
        )
    assert ask("plan", str(spoke.mountpoint), "declare", str(pair.work_dir / "none")).returncode == 2
    assert ask("plan", str(pair.work_dir), "list").returncode == 2


def test_without_prefetch_a_plan_has_no_use_and_is_told_so(pair: Pair) -> None:
    write(pair.data / "f.bin", MIB)
    spoke = pair.spoke(pair.hub().address, extra=["--no-prefetch"])
    fd = control(spoke)
    try:
        assert told(fd, hints.pack_steps(1, b"p", 0, [b"f.bin"], [0], [0], [100]) + bytes(512)) == errno.EOPNOTSUPP
    finally:
        os.close(fd)
    plan = hints.Plan(spoke.mountpoint)
    assert plan.add([(spoke.mountpoint / "f.bin", 0, 100)]) == 0
    assert not plan.active
