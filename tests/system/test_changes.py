"""The hub's files change under open handles and running readers: one version or ESTALE, never a mix; new opens see the new."""

import errno
import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.system.pair import Pair, ask, eventually

pytestmark = pytest.mark.mount

MIB = 1 << 20


def content(seed: int, size_bytes: int) -> bytes:
    """Bytes that tell from which version, and from where in the file, each piece comes."""
    block = hashlib.sha256(str(seed).encode()).digest() * 128
    return b"".join(bytes([index % 251]) + block[1:] for index in range(-(-size_bytes // 4096)))[:size_bytes]


def replace(path: Path, data: bytes) -> None:
    """As writers of datasets do it: a new file renamed into place."""
    draft = path.with_suffix(".new")
    draft.write_bytes(data)
    draft.replace(path)


def now_holds(path: Path, data: bytes) -> bool:
    """A reader that opened the old file in the very moment of a change may be told so."""
    try:
        return path.read_bytes() == data
    except OSError as error:
        if error.errno in (errno.ESTALE, errno.ENOENT):
            return False
        raise


def test_a_file_rewritten_in_place_during_reads_never_mixes_versions(pair: Pair) -> None:
    size_bytes = 8 * MIB
    versions = [content(seed, size_bytes) for seed in range(6)]
    path = pair.data / "tokens.bin"
    path.write_bytes(versions[0])
    spoke = pair.spoke(pair.hub().address)
    mounted = spoke.mountpoint / "tokens.bin"
    stop, wrong, seen = threading.Event(), [], set()

    def reader() -> None:
        while not stop.is_set():
            try:
                fd = os.open(mounted, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                # One open, two passes: both must be of one version, or end in ESTALE.
                passes = [b"".join(os.pread(fd, MIB, offset) for offset in range(0, size_bytes, MIB)) for _ in range(2)]
            except OSError as error:
                if error.errno != errno.ESTALE:
                    wrong.append(error)
                continue
            finally:
                os.close(fd)
            if passes[0] != passes[1] or passes[0] not in versions:
                wrong.append([hashlib.sha256(found).hexdigest() for found in passes])
            else:
                seen.add(versions.index(passes[0]))

    threads = [threading.Thread(target=reader) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number, data in enumerate(versions[1:], start=1):
            if number % 2:
                replace(path, data)
            else:
                with path.open("r+b") as file:
                    file.write(data)
            eventually(lambda number=number: number in seen, 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_an_open_handle_keeps_its_version_from_the_cache_and_gets_estale_beyond_it(pair: Pair) -> None:
    size_bytes = 12 * MIB
    old, new = content(1, size_bytes), content(2, size_bytes)
    path = pair.data / "f"
    path.write_bytes(old)
    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--no-prefetch"])
    fd = os.open(spoke.mountpoint / "f", os.O_RDONLY)
    try:
        assert os.pread(fd, MIB, 0) == old[:MIB]
        seen = os.getxattr(fd, "user.headrace.version")
        replace(path, new)
        eventually(lambda: os.getxattr(spoke.mountpoint / "f", "user.headrace.version") != seen, 5)
        assert os.pread(fd, MIB, 0) == old[:MIB], "what is cached of the old version is still served"
        with pytest.raises(OSError) as failed:
            os.pread(fd, MIB, 8 * MIB)
        assert failed.value.errno == errno.ESTALE
        assert os.fstat(fd).st_size == size_bytes
    finally:
        os.close(fd)
    assert (spoke.mountpoint / "f").read_bytes() == new
    assert spoke.status()["reads"]["stale"] >= 1


def test_new_opens_see_a_change_within_a_second(pair: Pair) -> None:
    path = pair.data / "f"
    path.write_bytes(b"old" * 1000)
    spoke = pair.spoke(pair.hub().address)
    mounted = spoke.mountpoint / "f"
    assert mounted.read_bytes() == b"old" * 1000
    for number in range(5):
        data = os.urandom(3000 + number)
        replace(path, data)
        eventually(lambda data=data: now_holds(mounted, data), 1.0)
        assert mounted.stat().st_size == len(data)


def test_names_come_go_and_move(pair: Pair) -> None:
    (pair.data / "a").write_bytes(b"a")
    (pair.data / "dir").mkdir()
    spoke = pair.spoke(pair.hub().address)
    top = spoke.mountpoint
    assert sorted(os.listdir(top)) == ["a", "dir"]
    assert not (top / "b").exists(), "and the kernel now remembers that it does not exist"
    (pair.data / "b").write_bytes(b"bee")
    eventually(lambda: (top / "b").exists() and (top / "b").read_bytes() == b"bee")
    (pair.data / "a").unlink()
    eventually(lambda: not (top / "a").exists())
    assert sorted(os.listdir(top)) == ["b", "dir"]
    (pair.data / "dir" / "deep").mkdir()
    (pair.data / "dir" / "deep" / "f").write_bytes(b"f")
    eventually((top / "dir" / "deep" / "f").exists)
    (pair.data / "dir").rename(pair.data / "moved")
    eventually(lambda: (top / "moved" / "deep" / "f").exists() and not (top / "dir").exists())
    shutil.rmtree(pair.data / "moved")
    eventually(lambda: not (top / "moved").exists())
    (pair.data / "b").unlink()
    (pair.data / "b").mkdir()
    eventually((top / "b").is_dir)


def test_a_renamed_directory_and_a_renamed_file_keep_their_cached_blocks(pair: Pair) -> None:
    data = os.urandom(5 * MIB)
    (pair.data / "dir").mkdir()
    (pair.data / "dir" / "f").write_bytes(data)
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    top = spoke.mountpoint
    assert (top / "dir" / "f").read_bytes() == data
    eventually(lambda: spoke.status()["cache"]["used_bytes"] >= 5 * MIB)
    version = os.getxattr(top / "dir" / "f", "user.headrace.version")
    (pair.data / "dir").rename(pair.data / "other")
    eventually((top / "other" / "f").exists)
    (pair.data / "other" / "f").rename(pair.data / "other" / "g")
    eventually((top / "other" / "g").exists)
    assert os.getxattr(top / "other" / "g", "user.headrace.version") == version
    hub.terminate()
    assert (top / "other" / "g").read_bytes() == data, "without a hub, so from the cache"


def test_a_truncated_and_an_appended_file(pair: Pair) -> None:
    data = content(7, 3 * MIB)
    path = pair.data / "f"
    path.write_bytes(data)
    spoke = pair.spoke(pair.hub().address)
    mounted = spoke.mountpoint / "f"
    assert mounted.read_bytes() == data
    with path.open("ab") as file:
        file.write(b"more")
    eventually(lambda: now_holds(mounted, data + b"more"))
    with path.open("r+b") as file:
        file.truncate(1234)
    eventually(lambda: now_holds(mounted, data[:1234]))


def test_a_loss_of_most_names_is_held_back_until_it_is_accepted(pair: Pair) -> None:
    for number in range(200):
        (pair.data / f"{number:03}").write_bytes(b"%d" % number)
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    assert (spoke.mountpoint / "007").read_bytes() == b"7"
    for number in range(180):
        (pair.data / f"{number:03}").unlink()
    eventually(lambda: spoke.status()["names"]["suspicious"] is not None)
    assert len(os.listdir(spoke.mountpoint)) > 100
    assert (spoke.mountpoint / "007").read_bytes() == b"7"
    assert "accept" in ask("status", str(spoke.mountpoint)).stdout
    accepted = ask("accept", str(spoke.mountpoint))
    assert accepted.returncode == 0
    eventually(lambda: len(os.listdir(spoke.mountpoint)) == 20)
    assert spoke.status()["names"]["suspicious"] is None


def test_the_datasets_own_directory_shows_its_mtime(pair: Pair) -> None:
    os.utime(pair.data, ns=(5, 1_600_000_000_123_456_789))
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    eventually(lambda: spoke.mountpoint.stat().st_mtime_ns == 1_600_000_000_123_456_789)
    (pair.data / "new").write_bytes(b"x")
    eventually(lambda: spoke.mountpoint.stat().st_mtime_ns == pair.data.stat().st_mtime_ns)
