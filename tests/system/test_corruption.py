"""Real daemons, a real mount, and damage of every kind: the reader gets the right bytes, or EIO when the hub has none."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from flipping_proxy import flipping
from pair import Pair, Spoke, ask, eventually
from prometheus_client.parser import text_string_to_metric_families

from common.errors import HeadraceError
from common.limits import HOUSEKEEPING_INTERVAL_S

pytestmark = pytest.mark.mount
BLOCK = 4096
SIZE_BYTES = 300 * BLOCK + 77
OLDER_BYTES = 100 * BLOCK
MEND_TIMEOUT_S = 60.0


class Pairs:
    """Finds the cache's two files of a dataset's file, by content; keeps older copies of them."""

    def __init__(self, cache: Path, kept: Path) -> None:
        self._cache = cache
        self._kept = kept
        self._data: dict[str, Path] = {}

    def learn(self, contents: dict[str, bytes]) -> None:
        """While nothing is damaged yet: each version's file begins with its content."""
        heads = {content[:OLDER_BYTES]: name for name, content in contents.items()}
        for path in self._cache.glob("versions/*/*.data"):
            with path.open("rb") as file:
                name = heads.get(file.read(OLDER_BYTES))
            if name is not None:
                self._data[name] = path

    def data(self, name: str) -> Path:
        return self._data[name]

    def index(self, name: str) -> Path:
        return self._data[name].with_suffix(".index")

    def keep(self) -> None:
        shutil.copytree(self._cache / "versions", self._kept)

    def put_back(self, path: Path) -> None:
        """In place, so that open descriptors see it."""
        shutil.copyfile(self._kept / path.parent.name / path.name, path)


def patch(path: Path, offset_bytes: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset_bytes)
        file.write(data)


def flip(pairs: Pairs, name: str, content: bytes) -> None:
    patch(pairs.data(name), 150 * BLOCK + 5, bytes([content[150 * BLOCK + 5] ^ 2]))


def swap(pairs: Pairs, name: str, content: bytes) -> None:
    patch(pairs.data(name), 150 * BLOCK, content[151 * BLOCK : 152 * BLOCK] + content[150 * BLOCK : 151 * BLOCK])


def truncate(pairs: Pairs, name: str, content: bytes) -> None:
    os.truncate(pairs.data(name), 200 * BLOCK)


def truncate_index(pairs: Pairs, name: str, content: bytes) -> None:
    os.truncate(pairs.index(name), 6000)


def zero(pairs: Pairs, name: str, content: bytes) -> None:
    patch(pairs.data(name), 0, bytes(SIZE_BYTES))


def zero_index(pairs: Pairs, name: str, content: bytes) -> None:
    patch(pairs.index(name), 0, bytes(pairs.index(name).stat().st_size))


def flip_index(pairs: Pairs, name: str, content: bytes) -> None:
    path = pairs.index(name)
    byte = path.read_bytes()[8192 + 8 * 150]
    patch(path, 8192 + 8 * 150, bytes([byte ^ 1]))


def older_data(pairs: Pairs, name: str, content: bytes) -> None:
    pairs.put_back(pairs.data(name))


def older_index(pairs: Pairs, name: str, content: bytes) -> None:
    pairs.put_back(pairs.index(name))


def older_both(pairs: Pairs, name: str, content: bytes) -> None:
    older_data(pairs, name, content)
    older_index(pairs, name, content)


Damage = Callable[[Pairs, str, bytes], None]
KINDS: list[Damage] = [
    flip, swap, truncate, truncate_index, zero, zero_index, flip_index, older_data, older_index, older_both
]  # fmt: skip
SILENT_AT_REST = {"older_index", "older_both"}
"""What is on the disk is consistent: fewer blocks are cached, and none of them is bad."""
SILENT_ALIVE = {"older_index", "truncate_index", "zero_index", "flip_index"}
"""The map of what is here is in memory, and data in the page cache whose file nobody changed are believed."""


def make(pair: Pair) -> dict[str, bytes]:
    contents = {kind.__name__: Random(kind.__name__).randbytes(SIZE_BYTES) for kind in KINDS}
    for name, content in contents.items():
        (pair.data / name).write_bytes(content)
    return contents


def samples(spoke: Spoke) -> dict[tuple[str, str], float]:
    """All samples, by name and the value of their one label."""
    with urllib.request.urlopen(f"http://{spoke.facts()['metrics']}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return {(found.name, *found.labels.values()): found.value for family in families for found in family.samples}  # type: ignore[misc]


def corrupt(spoke: Spoke, place: str) -> float:
    return samples(spoke)["headrace_spoke_corrupt_blocks_total", place]


def lines(log: str, event: str) -> list[dict[str, Any]]:
    found = []
    for line in log.splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if event in entry.get("event", ""):
                found.append(entry)
    return found


def cached(pair: Pair, contents: dict[str, bytes], extra: tuple[str, ...] = ()) -> tuple[Spoke, Pairs, str]:
    """Everything cached, and older copies of all pairs beside it."""
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=("--no-prefetch", "--scrub-rate", "0", *extra))
    for name, content in contents.items():
        fd = os.open(spoke.mountpoint / name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(fd, OLDER_BYTES, 0) == content[:OLDER_BYTES]
        os.close(fd)
    spoke.settled()
    pairs = Pairs(pair.work_dir / "cache", pair.work_dir / "older")
    pairs.learn(contents)
    pairs.keep()
    warmed = ask("warm", str(spoke.mountpoint), "--quiet")
    assert warmed.returncode == 0, warmed.stderr
    return spoke, pairs, hub.address


def all_right(spoke: Spoke, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        assert (spoke.mountpoint / name).read_bytes() == content, name


def test_damage_at_rest(pair: Pair) -> None:
    contents = make(pair)
    spoke, pairs, address = cached(pair, contents)
    assert spoke.terminate() == 0
    for kind in KINDS:
        kind(pairs, kind.__name__, contents[kind.__name__])
    spoke = pair.spoke(address, extra=("--scrub-rate", "0", "--no-prefetch"))
    all_right(spoke, contents)
    assert corrupt(spoke, "cache") > 0
    expected = set(contents) - SILENT_AT_REST
    eventually(lambda: {line["path"] for line in lines(spoke.log(), "cached blocks were bad")} == expected)
    for line in lines(spoke.log(), "cached blocks were bad"):
        assert line["block"]
        assert line["cause"]
        assert line["next_step"]
    eventually(lambda: spoke.facts()["cache"]["write_backlog_bytes"] == 0)
    checked = ask("verify", str(spoke.mountpoint))
    assert checked.returncode == 0, checked.stdout


def test_damage_while_it_runs(pair: Pair) -> None:
    contents = make(pair)
    spoke, pairs, _ = cached(pair, contents, ("--no-passthrough",))
    for kind in KINDS:
        kind(pairs, kind.__name__, contents[kind.__name__])
    all_right(spoke, contents)
    assert spoke.facts()["data_path"]["passthrough_opens"] == 0
    assert corrupt(spoke, "cache") > 0
    expected = set(contents) - SILENT_ALIVE
    eventually(lambda: {line["path"] for line in lines(spoke.log(), "cached blocks were bad")} >= expected)
    spoke.settled()
    # What was read from memory, or can be believed by what is in memory, is seen and mended by this.
    assert ask("verify", str(spoke.mountpoint)).returncode in (0, 1)
    assert ask("verify", str(spoke.mountpoint)).returncode == 0
    all_right(spoke, contents)


@pytest.mark.slow
def test_a_file_that_the_kernel_reads_by_itself_is_mended(pair: Pair) -> None:
    contents = make(pair)
    spoke, pairs, _ = cached(pair, contents)
    if not spoke.facts()["data_path"]["passthrough"]:
        pytest.skip("passthrough is off here")
    kinds = [flip, swap, truncate, zero, older_data, older_both]
    held = {kind.__name__: os.open(spoke.mountpoint / kind.__name__, os.O_RDONLY) for kind in kinds}
    assert spoke.facts()["data_path"]["passthrough_opens"] == len(held)
    with stopped(spoke.worker_pid()):  # or it might mend before we look
        for kind in kinds:
            kind(pairs, kind.__name__, contents[kind.__name__])
        assert os.pread(held["flip"], SIZE_BYTES, 0) != contents["flip"]  # nobody can stand in between
    # A new open sees that the file was changed, and goes the plain way.
    assert (spoke.mountpoint / "swap").read_bytes() == contents["swap"]
    mended(spoke, held, contents)  # the others are found by themselves
    all_right(spoke, contents)


def mended(spoke: Spoke, held: dict[str, int], contents: dict[str, bytes]) -> None:
    """Seen within 5 s, and asked for again every 5 s should the first time come to nothing; each of them longer on a busy machine."""
    for name, fd in held.items():
        eventually(lambda name=name, fd=fd: os.pread(fd, SIZE_BYTES, 0) == contents[name], MEND_TIMEOUT_S)
        os.close(fd)
    eventually(lambda: samples(spoke)["headrace_spoke_mending_files",] == 0, MEND_TIMEOUT_S)  # type: ignore[index]


def is_served_by_another(spoke: Spoke, pid: int) -> bool:
    try:
        return spoke.worker_pid() != pid
    except HeadraceError:  # it has gone, and the next is not there yet
        return False


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_what_a_dead_worker_lent_is_mended_by_the_next(pair: Pair) -> None:
    """The next one has no descriptor of its own, and knows of the loan from the ledger alone."""
    contents = make(pair)
    spoke, pairs, _ = cached(pair, contents)
    if not spoke.facts()["data_path"]["passthrough"]:
        pytest.skip("passthrough is off here")
    kinds: list[Damage] = [flip, zero, truncate, truncate_index]
    held = {kind.__name__: os.open(spoke.mountpoint / kind.__name__, os.O_RDONLY) for kind in kinds}
    killed = spoke.worker_pid()
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: is_served_by_another(spoke, killed), MEND_TIMEOUT_S)
    for name, fd in held.items():
        assert os.pread(fd, SIZE_BYTES, 0) == contents[name], name
    time.sleep(2 * HOUSEKEEPING_INTERVAL_S)  # so that it knows what they look like: nothing tells of it
    for kind in kinds:
        kind(pairs, kind.__name__, contents[kind.__name__])
    flip(pairs, "truncate_index", contents["truncate_index"])
    mended(spoke, held, contents)
    all_right(spoke, contents)


@pytest.mark.slow
def test_wrong_bytes_on_the_wire(pair: Pair) -> None:
    contents = {f"f{number}": Random(number).randbytes(3_000_000) for number in range(4)}
    contents["zeros"] = bytes(2_000_000)  # travels compressed
    for name, content in contents.items():
        (pair.data / name).write_bytes(content)
    hub = pair.hub(extra=("--compression", "on"))
    with flipping(hub.port) as proxy:
        proxy.choose = lambda number: "payload" if number % 5 == 1 else "digests" if number % 7 == 3 else ""
        spoke = pair.spoke(f"127.0.0.1:{proxy.port}", extra=("--scrub-rate", "0", "--no-prefetch"))
        for name in ("f0", "f1", "zeros"):
            assert (spoke.mountpoint / name).read_bytes() == contents[name], name
        assert proxy.flipped["payload"] > 0
        assert proxy.flipped["digests"] > 0
        assert corrupt(spoke, "wire") >= 2
        eventually(lambda: lines(spoke.log(), "a block from the hub was wrong"))
        line = lines(spoke.log(), "a block from the hub was wrong")[0]
        assert line["path"] in contents
        assert line["block"]
        assert line["next_step"]

        proxy.choose = lambda number: "payload"
        with pytest.raises(OSError) as caught:
            (spoke.mountpoint / "f2").read_bytes()
        assert caught.value.errno == errno.EIO
        assert (spoke.mountpoint / "f0").read_bytes() == contents["f0"]
        failed = [line for line in lines(spoke.log(), "a read failed") if line["path"] == "f2"]
        assert failed[0]["code"] == "corrupt"

        proxy.choose = lambda number: ""
        for name, content in contents.items():
            assert (spoke.mountpoint / name).read_bytes() == content, name


FAILING_PREADV = """
import errno, os
_real = os.preadv
def preadv(fd, buffers, offset, flags=0):
    try:
        with open({spec!r}) as file:
            name, bad = file.read().split()
    except FileNotFoundError:
        return _real(fd, buffers, offset, flags)
    if os.readlink(f"/proc/self/fd/{{fd}}").endswith("/" + name):
        if offset <= int(bad) < offset + sum(map(len, buffers)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    return _real(fd, buffers, offset, flags)
os.preadv = preadv
"""


@pytest.mark.parametrize("prefetch", ["--prefetch", "--no-prefetch"])
def test_the_hubs_disk_cannot_read_a_block(pair: Pair, prefetch: str) -> None:
    content = Random(1).randbytes(4_000_000)
    (pair.data / "f").write_bytes(content)
    shims, spec = pair.work_dir / "shims", pair.work_dir / "bad-block"
    shims.mkdir()
    (shims / "sitecustomize.py").write_text(FAILING_PREADV.format(spec=str(spec)))
    hub = pair.hub(env={"PYTHONPATH": str(shims)})
    spoke = pair.spoke(hub.address, extra=("--scrub-rate", "0", prefetch))
    bad_block = 600
    spec.write_text(f"f {bad_block * BLOCK + 100}")
    got: dict[int, bytes] = {}
    failed: dict[int, int | None] = {}
    fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
    try:
        for block in range(len(content) // BLOCK):
            try:
                got[block] = os.pread(fd, BLOCK, block * BLOCK)
            except OSError as error:
                failed[block] = error.errno
        assert failed == {bad_block: errno.EIO}
        assert all(data == content[block * BLOCK : (block + 1) * BLOCK] for block, data in got.items())
        said = lines(hub.log(), "a file cannot be read")
        assert len(said) == 1, "one line for one bad place"
        assert said[0]["path"] == "f"
        assert said[0]["block"] == bad_block
        assert "dmesg" in said[0]["next_step"]
        (reader, *_) = lines(spoke.log(), "a read failed")
        assert reader["path"] == "f"
        assert "Input/output error" in reader["error"]
        spec.unlink()  # the sector was mapped anew
        assert os.pread(fd, BLOCK, bad_block * BLOCK) == content[bad_block * BLOCK : (bad_block + 1) * BLOCK]
    finally:
        os.close(fd)
    assert (spoke.mountpoint / "f").read_bytes() == content


@pytest.mark.slow
def test_verify(pair: Pair) -> None:
    contents = make(pair)
    spoke, pairs, address = cached(pair, contents)
    mount, cache = str(spoke.mountpoint), str(pair.work_dir / "cache")
    assert ask("verify", mount).returncode == 0
    flip(pairs, "flip", contents["flip"])
    zero(pairs, "zero", contents["zero"])
    narrow = ask("verify", mount, "swap", f"{mount}/truncate", "--json")
    assert narrow.returncode == 0
    assert json.loads(narrow.stdout)["files"] == 2
    found = ask("verify", mount, "--json")
    assert found.returncode == 1
    facts = json.loads(found.stdout)
    assert {bad["path"]: bad["blocks"] for bad in facts["bad_files"]} == {"flip": [[150, 1]], "zero": [[0, 301]]}
    assert facts["bad_blocks"] == facts["mended_blocks"] == 302
    assert ask("verify", mount).returncode == 0, "they were mended"
    flip(pairs, "flip", contents["flip"])
    kept = ask("verify", mount, "flip", "--no-repair")
    assert kept.returncode == 1
    assert "flip: blocks 150" in kept.stdout

    for wrong in ((), (mount, "--cache-dir", cache), (mount, "no/such/file"), (mount, "--rate", "fast"), ("/",),
                  ("--cache-dir", cache), ("--cache-dir", str(pair.data)), ("--cache-dir", "/nowhere")):  # fmt: skip
        answer = ask("verify", *wrong)
        assert answer.returncode == 2, (wrong, answer)
        assert answer.stderr

    assert (spoke.mountpoint / "flip").read_bytes() == contents["flip"]
    assert spoke.terminate() == 0
    assert ask("verify", "--cache-dir", cache).returncode == 0
    flip(pairs, "flip", contents["flip"])
    truncate_index(pairs, "swap", contents["swap"])
    for _ in range(2):  # without repair nothing changes
        found = ask("verify", "--cache-dir", cache, "--no-repair", "--json")
        assert found.returncode == 1
        named = {bad["path"]: bad["blocks"] for bad in json.loads(found.stdout)["bad_files"]}
        assert named == {"data: flip": [[150, 1]], "data: swap": [[0, 301]]}
    assert ask("verify", "--cache-dir", cache).returncode == 1
    assert ask("verify", "--cache-dir", cache).returncode == 0
    spoke = pair.spoke(address, extra=("--scrub-rate", "0"))
    all_right(spoke, contents)
    assert corrupt(spoke, "cache") == 0, "what was bad had been taken out"


@pytest.mark.slow
def test_the_scrub_finds_what_nobody_reads(pair: Pair) -> None:
    contents = make(pair)
    spoke, pairs, address = cached(pair, contents)
    assert spoke.terminate() == 0
    flip(pairs, "flip", contents["flip"])
    spoke = pair.spoke(address, extra=("--scrub-rate", "200MB/s"))
    eventually(lambda: spoke.facts()["cache"]["scrub"]["passes"] >= 1, 20)
    assert spoke.facts()["cache"]["scrub"]["last_pass"]["bad_blocks"] == 1
    eventually(lambda: lines(spoke.log(), "cached blocks were bad"))
    (line,) = lines(spoke.log(), "cached blocks were bad")
    assert (line["path"], line["block"]) == ("flip", "150")
    seen = samples(spoke)
    assert seen["headrace_spoke_scrub_bad_blocks_total",] == 1  # type: ignore[index]
    assert seen["headrace_spoke_scrub_bytes_total",] >= len(contents) * SIZE_BYTES - BLOCK  # type: ignore[index]
    assert "scrub      " in ask("status", str(spoke.mountpoint)).stdout
    spoke.settled()
    assert ask("verify", str(spoke.mountpoint)).returncode == 0


@pytest.mark.slow
def test_a_spoke_killed_at_seeded_moments_keeps_what_it_had(pair: Pair) -> None:
    """kill -9 during fills, evictions and changes of names; each restart serves right bytes, and nothing is cleaned by hand."""
    dice = Random(7)
    contents = {f"f{number}": dice.randbytes(3_000_000) for number in range(12)}
    for name, content in contents.items():
        (pair.data / name).write_bytes(content)
    hub = pair.hub()
    flags = ("--cache-size", "24MiB", "--cache-free-floor", "0", "--scrub-rate", "0")
    spoke = pair.spoke(hub.address, extra=flags)
    for round_number in range(6):
        reading = threading.Thread(target=_read_for_a_while, args=(spoke.mountpoint, contents, Random(round_number)))
        reading.start()
        name = f"f{dice.randrange(12)}"
        fresh = dice.randbytes(3_000_000)
        beside = pair.data / "beside"
        beside.write_bytes(fresh)
        time.sleep(dice.uniform(0.05, 0.6))
        os.rename(beside, pair.data / name)
        contents = {**contents, name: fresh}
        time.sleep(dice.uniform(0.05, 0.6))
        used_bytes = spoke.facts()["cache"]["used_bytes"]
        spoke.kill()
        reading.join()
        spoke = pair.spoke(hub.address, extra=flags)
        kept = json.loads(ask("verify", str(spoke.mountpoint), "--json").stdout)
        assert kept["bad_blocks"] == 0
        assert (
            spoke.facts()["cache"]["used_bytes"] >= 0.9 * used_bytes
        )  # some was evicted between the look and the kill
        for name, content in contents.items():
            assert (spoke.mountpoint / name).read_bytes() == content, name


def _read_for_a_while(mountpoint: Path, contents: dict[str, bytes], dice: Random) -> None:
    with contextlib.suppress(OSError):  # until the spoke is killed
        while True:
            name = dice.choice(sorted(contents))
            (mountpoint / name).read_bytes()
