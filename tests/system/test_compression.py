"""Fewer bytes on the wire, the same bytes at the mount."""

import random
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.system.pair import Pair

pytestmark = pytest.mark.mount


def token_ids(count: int) -> np.ndarray:
    """Word ids of real text (the standard library's), by frequency, as a tokenizer numbers them."""
    words: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        words += re.findall(r"\w+|\s+|[^\w\s]", path.read_text("utf-8", "replace"))
        if len(words) >= count:
            break
    frequency: dict[str, int] = {}
    for word in words:
        frequency[word] = frequency.get(word, 0) + 1
    ids = {word: number for number, word in enumerate(sorted(frequency, key=lambda word: -frequency[word]))}
    return np.array([ids[word] for word in words[:count]])


def test_token_files_cross_with_half_their_bytes_and_noise_with_no_more_than_its_own(
    pair: Pair, far: Callable[..., str]
) -> None:
    ids = token_ids(1_000_000)
    (pair.data / "u32.bin").write_bytes(ids.astype("<u4").tobytes())
    (pair.data / "u16.bin").write_bytes(np.minimum(ids, 65535).astype("<u2").tobytes())
    (pair.data / "noise.bin").write_bytes(random.Random(1).randbytes(8 << 20))
    hub = pair.hub()
    spoke = pair.spoke(hub.address)

    def crossed(name: str) -> float:
        before = spoke.status()["hub"]["received_bytes"]
        data = (pair.data / name).read_bytes()
        assert (spoke.mountpoint / name).read_bytes() == data
        return (spoke.status()["hub"]["received_bytes"] - before) / len(data)

    assert crossed("noise.bin") <= 1.01
    # A long link by itself, from the first byte of the first file.
    spoke = pair.spoke(far(hub.address, "300mbit"), name="mnt-far", cache="cache-far")
    assert crossed("u32.bin") <= 0.5
    assert crossed("u16.bin") <= 0.75
    assert crossed("noise.bin") <= 1.01
    # On loopback the link is never short; --compression on shows what a short one would get.
    hub.terminate()
    hub = pair.hub(extra=["--compression", "on"])
    spoke = pair.spoke(hub.address, name="mnt-on", cache="cache-on")
    assert crossed("u32.bin") <= 0.5
    assert crossed("u16.bin") <= 0.75
    assert crossed("noise.bin") <= 1.02, "one extent in 64 is tried, none gets longer"
    facts = hub.status()
    assert facts["packed_bytes"] < facts["raw_bytes"]
    raw = pair.spoke(hub.address, name="mnt-raw", cache="cache-raw", extra=["--no-compression"])
    spoke = raw
    assert 1.0 <= crossed("u32.bin") <= 1.02
