"""How a file version gets its name, and when a moved ctime still names the same bytes. Pure.

A version is xxh3_128 over (inode, size, mtime_ns, edit_ctime_ns). ctime moves on an edit, but on chmod, rename and link
as well; ``edit_ctime_ns`` is the ctime at the last edit as far as the catalog knows. An older one is kept only when the
watcher's events explain the move without an edit; whatever is not proven counts as an edit: better to fetch bytes
again than to ever serve wrong ones.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from xxhash import xxh3_128_digest

from common.entries import Kind

FILE, DIRECTORY, SYMLINK = int(Kind.FILE), int(Kind.DIRECTORY), int(Kind.SYMLINK)

_VERSION_INPUT = struct.Struct("<qqqq")
_INT64_MAX = (1 << 63) - 1


class Facts(NamedTuple):
    """What one lstat said, as far as it matters; the order is that of the catalog's columns.

    ``kind``: a common.entries.Kind as int. ``inode`` is the kernel's number as a signed 64-bit one. ``device``: 0 for the
    root's own file system, whose number may differ after a reboot. For directories and symlinks ``ctime_ns`` and
    ``link_count`` are 0, and a directory's ``size_bytes`` is: they say nothing about content and would only make noise.
    """

    kind: int
    mode: int
    size_bytes: int
    mtime_ns: int
    inode: int
    ctime_ns: int
    device: int
    link_count: int
    target: bytes


class Identity(NamedTuple):
    """What fstat must say of a descriptor for its bytes to be a version's."""

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


class Known(NamedTuple):
    """What the catalog holds of a name. ``since``: the revision at which its entry became what it is."""

    facts: Facts
    edit_ctime_ns: int
    version: bytes
    since: int = 0


InodeKey = tuple[int, int]
"""(device, inode)"""


def signed_inode(number: int) -> int:
    """Inode numbers above 2**63 wrap to negative (SQLite's integers are signed)."""
    return number if number <= _INT64_MAX else number - (1 << 64)


def _clamp(time_ns: int) -> int:
    """Times past the year 2262 do not fit 64 bits of nanoseconds; file systems can hold them."""
    return time_ns if -_INT64_MAX <= time_ns <= _INT64_MAX else (_INT64_MAX if time_ns > 0 else -_INT64_MAX)


def file_facts(seen: os.stat_result, root_device: int) -> Facts:
    """Facts of a regular file."""
    device = seen.st_dev
    return Facts(
        FILE,
        seen.st_mode & 0o7777,
        seen.st_size,
        _clamp(seen.st_mtime_ns),
        signed_inode(seen.st_ino),
        _clamp(seen.st_ctime_ns),
        0 if device == root_device else device,
        seen.st_nlink,
        b"",
    )


def directory_facts(seen: os.stat_result, root_device: int) -> Facts:
    device = 0 if seen.st_dev == root_device else seen.st_dev
    return Facts(
        DIRECTORY, seen.st_mode & 0o7777, 0, _clamp(seen.st_mtime_ns), signed_inode(seen.st_ino), 0, device, 0, b""
    )


def symlink_facts(seen: os.stat_result, root_device: int, target: bytes) -> Facts:
    device = 0 if seen.st_dev == root_device else seen.st_dev
    mtime_ns = _clamp(seen.st_mtime_ns)
    mode = seen.st_mode & 0o7777
    return Facts(SYMLINK, mode, len(target), mtime_ns, signed_inode(seen.st_ino), 0, device, 0, target)


def identity_of(seen: os.stat_result) -> Identity | None:
    """The identity of an open descriptor; None when it is not a regular file."""
    if not stat.S_ISREG(seen.st_mode):
        return None
    return Identity(signed_inode(seen.st_ino), seen.st_size, _clamp(seen.st_mtime_ns), _clamp(seen.st_ctime_ns))


def version_of(facts: Facts, edit_ctime_ns: int) -> bytes:
    """The name of these bytes: 16 bytes."""
    return xxh3_128_digest(_VERSION_INPUT.pack(facts.inode, facts.size_bytes, facts.mtime_ns, edit_ctime_ns))


def same_entry(one: Facts, one_version: bytes, other: Facts, other_version: bytes) -> bool:
    """Whether a spoke would see no difference (common.entries.Entry)."""
    return one[:4] == other[:4] and one_version == other_version and one.target == other.target


def inode_key(facts: Facts) -> InodeKey:
    return facts.device, facts.inode


@dataclass(slots=True)
class Evidence:
    """What a burst of events proves about the names in it.

    ``origins``: for a name with events, the name its occupant had when the burst began, or None if it came in during it.
    ``edited``: names whose occupant was written to or closed after writing. ``edited_departed``: names, as of the
    burst's beginning, of files that were edited and then removed or moved away. ``relinked``: names that were made, removed
    or replaced. ``trusted``: False when something could not be followed; then nothing is proven.
    """

    origins: dict[bytes, bytes | None] = field(default_factory=dict)
    edited: set[bytes] = field(default_factory=set)
    edited_departed: set[bytes] = field(default_factory=set)
    relinked: set[bytes] = field(default_factory=set)
    trusted: bool = True

    def named_paths(self) -> set[bytes]:
        """Every name whose row in the catalog the judgement needs."""
        return {
            *self.origins,
            *(origin for origin in self.origins.values() if origin is not None),
            *self.edited,
            *self.edited_departed,
            *self.relinked,
        }


class Judgement(NamedTuple):
    """``kept``: the edit ctime that stays, by inode. ``edited``: inodes whose ctime is their edit ctime whatever was known."""

    kept: dict[InodeKey, int]
    edited: set[InodeKey]


def _edited_inodes(
    before: Mapping[bytes, Known], now: Mapping[bytes, Facts | None], evidence: Evidence
) -> tuple[set[InodeKey], bool]:
    """(the inodes that were edited, whether all of them could be told)."""
    edited: set[InodeKey] = set()
    complete = True
    for path in evidence.edited:
        facts = now.get(path)
        known = before.get(path)
        if facts is not None:
            edited.add(inode_key(facts))
        elif known is not None and evidence.origins.get(path, path) == path:
            edited.add(inode_key(known.facts))
        else:
            complete = False
    for path in evidence.edited_departed:
        known = before.get(path)
        if known is not None:
            edited.add(inode_key(known.facts))
        else:
            complete = False
    return edited, complete


def judge(
    before: Mapping[bytes, Known],
    now: Mapping[bytes, Facts | None],
    linked: Mapping[InodeKey, set[bytes]],
    evidence: Evidence,
) -> Judgement:
    """Which inodes of a burst keep their older edit ctime.

    ``before``: the catalog's rows of all names concerned, those in ``linked`` included; ``now``: what lstat says of the
    observed ones (None: gone); ``linked``: all names the catalog has for each inode with several links.

    An inode keeps its edit ctime when a name of it can be followed through the whole burst (the same name without name
    events, or a rename seen from both sides), size and mtime stayed, an event explains the moved ctime, nothing wrote to
    it under any name, and it has no name outside what is watched, through which a write would be invisible.
    """
    edited, complete = _edited_inodes(before, now, evidence)
    kept: dict[InodeKey, int] = {}
    if not (complete and evidence.trusted):
        return Judgement(kept, edited)
    relinked: set[InodeKey] = set()
    for path in evidence.relinked:
        facts, known = now.get(path), before.get(path)
        relinked.update(inode_key(seen) for seen in (facts, known.facts if known else None) if seen is not None)
    for path, facts in now.items():
        if facts is None or facts.kind != FILE:
            continue
        key = inode_key(facts)
        origin = evidence.origins.get(path, path)
        known = before.get(origin) if origin is not None else None
        if key in edited or key in kept or known is None or known.facts.kind != FILE:
            continue
        old = known.facts
        if inode_key(old) != key or old.size_bytes != facts.size_bytes or old.mtime_ns != facts.mtime_ns:
            continue
        explained = path in evidence.origins or key in relinked or old.ctime_ns == facts.ctime_ns
        if explained and _all_names_watched(key, old, facts, before, now, linked):
            kept[key] = known.edit_ctime_ns
    return Judgement(kept, edited)


def _all_names_watched(
    key: InodeKey,
    old: Facts,
    facts: Facts,
    before: Mapping[bytes, Known],
    now: Mapping[bytes, Facts | None],
    linked: Mapping[InodeKey, set[bytes]],
) -> bool:
    """Whether the inode has no name, and had none, but those in the catalog, and they were all looked at since it last moved."""
    if old.link_count == 1 and facts.link_count == 1:
        return True
    names_before = linked.get(key, set())
    names_now = {path for path in names_before if path not in now}
    names_now.update(path for path, seen in now.items() if seen is not None and inode_key(seen) == key)
    return (
        len(names_before) == old.link_count
        and len(names_now) == facts.link_count
        and all(path in before and before[path].facts.ctime_ns == old.ctime_ns for path in names_before)
    )
