"""The FUSE protocol as bytes: opcodes, flags, struct packing, request parsing, version negotiation.

Pure: no file descriptor, no clock. Facts are those of ``include/uapi/linux/fuse.h`` for protocol 7.31 (Linux 5.4)
to 7.45 (Linux 6.18); all integers are in host order, which on every platform we run on is little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

from common.errors import HeadraceError
from common.limits import FUSE_CONGESTION_THRESHOLD, FUSE_MAX_BACKGROUND

MAJOR = 7
MINOR_LOWEST = 31
MINOR_HIGHEST = 45
ROOT_NODE_ID = 1
PAGE_BYTES = 4096
MAX_READ_BYTES = 1024 * 1024
"""Largest READ: 256 pages, the kernel's own default ceiling (``fs.fuse.max_pages_limit``)."""
MAX_WRITE_BYTES = 4096
"""The least the kernel takes; nothing is ever written, and the read buffer is sized by it."""
REQUEST_BUFFER_BYTES = 128 * 1024
"""Room for any request: the largest are an IOCTL (16 KiB of payload) and BATCH_FORGET, which fills what it is given."""

UNIQUE_RESEND = 1 << 63
"""Set in the unique of a request that the kernel sends again; the answer carries it too."""

# Not in the INIT flags but in the replies to OPEN.
FOPEN_DIRECT_IO = 1 << 0
FOPEN_KEEP_CACHE = 1 << 1
FOPEN_NOFLUSH = 1 << 5
FOPEN_PASSTHROUGH = 1 << 7

BACKING_OPEN = 0x4010E501  # _IOW(229, 1, struct fuse_backing_map)
BACKING_CLOSE = 0x4004E502  # _IOW(229, 2, uint32_t)

TCGETS = 0x5401
"""What ``isatty`` asks: Python's buffered ``open`` sends it for every file."""


class Opcode(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52
    COPY_FILE_RANGE_64 = 53


WRITING = frozenset(
    {
        Opcode.SETATTR,
        Opcode.SYMLINK,
        Opcode.MKNOD,
        Opcode.MKDIR,
        Opcode.UNLINK,
        Opcode.RMDIR,
        Opcode.RENAME,
        Opcode.LINK,
        Opcode.WRITE,
        Opcode.SETXATTR,
        Opcode.REMOVEXATTR,
        Opcode.CREATE,
        Opcode.FALLOCATE,
        Opcode.RENAME2,
        Opcode.COPY_FILE_RANGE,
        Opcode.TMPFILE,
        Opcode.COPY_FILE_RANGE_64,
    }
)
"""Answered with EROFS. The read-only mount makes the kernel refuse most of them before we see them."""

NO_REPLY = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT, Opcode.NOTIFY_REPLY})
"""Requests the kernel does not wait for: a reply to one would be answered with an error, or hit another request."""


class Init(IntFlag):
    """INIT flags; bits from 32 up travel in ``flags2`` (and need INIT_EXT)."""

    ASYNC_READ = 1 << 0
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    PARALLEL_DIROPS = 1 << 18
    ABORT_ERROR = 1 << 21
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    EXPLICIT_INVAL_DATA = 1 << 25
    INIT_EXT = 1 << 30
    DIRECT_IO_ALLOW_MMAP = 1 << 36
    PASSTHROUGH = 1 << 37
    NO_EXPORT_SUPPORT = 1 << 38
    HAS_RESEND = 1 << 39


# Not ASYNC_DIO: with it an O_DIRECT reader waits in a way that not even SIGKILL ends, and no INTERRUPT is sent.
WANTED = (
    Init.ASYNC_READ
    | Init.DO_READDIRPLUS
    | Init.READDIRPLUS_AUTO
    | Init.PARALLEL_DIROPS
    | Init.ABORT_ERROR
    | Init.MAX_PAGES
    | Init.CACHE_SYMLINKS
    # Bytes never change under a node id, so the kernel need not drop pages when a time stamp does.
    | Init.EXPLICIT_INVAL_DATA
    | Init.INIT_EXT
    | Init.DIRECT_IO_ALLOW_MMAP
    # A node id means nothing after a restart: a file handle kept by an NFS server must not find another file.
    | Init.NO_EXPORT_SUPPORT
    | Init.HAS_RESEND
)


class Notify(IntEnum):
    INVAL_INODE = 2
    INVAL_ENTRY = 3
    DELETE = 6
    RESEND = 7
    INC_EPOCH = 8


MINOR_INC_EPOCH = 44
"""First minor whose kernel knows INC_EPOCH: all cached names are looked up again."""

IN_HEADER = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node id, uid, gid, pid, extension length, padding
IN_HEADER_BYTES = IN_HEADER.size
OUT_HEADER = struct.Struct("<IiQ")
OUT_HEADER_BYTES = OUT_HEADER.size
_INIT_IN = struct.Struct("<IIII")
_INIT_FLAGS2 = struct.Struct("<I")
_INIT_OUT = struct.Struct("<IIIIHHIIHHII24x")
FORGET_IN = struct.Struct("<Q")
BATCH_FORGET_IN = struct.Struct("<II")
FORGET_ONE = struct.Struct("<QQ")
OPEN_IN = struct.Struct("<II")
READ_IN = struct.Struct("<QQIIQII")
RELEASE_IN = struct.Struct("<QIIQ")
GETXATTR_IN = struct.Struct("<II")
ACCESS_IN = struct.Struct("<II")
INTERRUPT_IN = struct.Struct("<Q")
IOCTL_IN = struct.Struct("<QIIQII")
_ATTR = "QQQQQQIIIIIIIIII"
_ENTRY_OUT = struct.Struct("<QQQQII" + _ATTR)
_ATTR_OUT = struct.Struct("<QII" + _ATTR)
_DIRENT = struct.Struct("<QQII")
_DIRENTPLUS = struct.Struct("<QQQQII" + _ATTR + "QQII")
_OPEN_OUT = struct.Struct("<QIi")
_STATFS_OUT = struct.Struct("<QQQQQIIIIQQQ")
_XATTR_SIZE = struct.Struct("<II")
_IOCTL_OUT = struct.Struct("<iIII")
_BACKING_MAP = struct.Struct("<iIQ")
_BACKING_ID = struct.Struct("<I")
_INVAL_INODE = struct.Struct("<Qqq")
_INVAL_ENTRY = struct.Struct("<QII")
_DELETE = struct.Struct("<QQII")

Fields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int]
"""``struct fuse_attr`` in order: ino, size, blocks, atime, mtime, ctime, their nanoseconds, mode, nlink, uid, gid, rdev, blksize, flags."""


class MalformedRequest(HeadraceError):
    """A request that does not have the form of its opcode; answered with an error, never fatal."""

    wire_code = "malformed-request"


class UnsupportedKernel(HeadraceError):
    """The kernel speaks no protocol version that we do."""

    wire_code = "unsupported-kernel"


# --- INIT ------------------------------------------------------------------------------------------------


class InitRequest(NamedTuple):
    """What the kernel offers. ``max_readahead_bytes`` can be lowered by the answer, never raised."""

    major: int
    minor: int
    max_readahead_bytes: int
    flags: int


@dataclass(frozen=True, slots=True)
class InitWishes:
    """What we would like. ``max_background``: READs the kernel may have in flight for readahead and faults (its default
    of 12 would allow 190 a second over 60 ms); from ``congestion_threshold`` on it skips asynchronous readahead."""

    max_readahead_bytes: int = 128 * 1024
    max_background: int = FUSE_MAX_BACKGROUND
    congestion_threshold: int = FUSE_CONGESTION_THRESHOLD
    passthrough: bool = False


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What holds for this connection."""

    minor: int
    flags: int
    max_readahead_bytes: int
    max_background: int

    @property
    def passthrough(self) -> bool:
        return bool(self.flags & Init.PASSTHROUGH)

    @property
    def resend(self) -> bool:
        """The kernel sends unanswered requests again when it is asked to."""
        return bool(self.flags & Init.HAS_RESEND)

    @property
    def inc_epoch(self) -> bool:
        return self.minor >= MINOR_INC_EPOCH


def parse_init(body: memoryview) -> InitRequest:
    if len(body) < _INIT_IN.size:
        raise MalformedRequest(f"INIT of {len(body)} bytes")
    major, minor, max_readahead_bytes, flags = _INIT_IN.unpack_from(body)
    if flags & Init.INIT_EXT and len(body) >= _INIT_IN.size + _INIT_FLAGS2.size:
        flags |= _INIT_FLAGS2.unpack_from(body, _INIT_IN.size)[0] << 32
    return InitRequest(major, minor, max_readahead_bytes, flags)


def negotiate(offer: InitRequest, wishes: InitWishes) -> tuple[Negotiated, bytes]:
    """The terms and the reply that states them. Raises UnsupportedKernel below 7.31 (Linux 5.4) or for another major."""
    if offer.major != MAJOR or offer.minor < MINOR_LOWEST:
        raise UnsupportedKernel(
            f"this kernel speaks FUSE {offer.major}.{offer.minor}; {MAJOR}.{MINOR_LOWEST} (Linux 5.4) or newer is needed"
        )
    wanted = WANTED | (Init.PASSTHROUGH if wishes.passthrough else 0)
    flags = int(wanted) & offer.flags
    if not flags & Init.INIT_EXT:
        flags &= 0xFFFFFFFF
    terms = Negotiated(
        minor=min(offer.minor, MINOR_HIGHEST),
        flags=flags,
        max_readahead_bytes=min(offer.max_readahead_bytes, wishes.max_readahead_bytes),
        max_background=wishes.max_background,
    )
    reply = _INIT_OUT.pack(
        MAJOR,
        terms.minor,
        terms.max_readahead_bytes,
        flags & 0xFFFFFFFF,
        wishes.max_background,
        wishes.congestion_threshold,
        MAX_WRITE_BYTES,
        1,  # time granularity, ns
        MAX_READ_BYTES // PAGE_BYTES,
        0,
        flags >> 32,
        1 if terms.passthrough else 0,  # max_stack_depth: backing files on a plain file system, not on a stacked one
    )
    return terms, reply


def pack_major() -> bytes:
    """INIT's answer to a kernel of a later major version, which then offers ours."""
    return _INIT_OUT.pack(MAJOR, MINOR_HIGHEST, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


# --- requests --------------------------------------------------------------------------------------------


def parse_name(body: memoryview) -> bytes:
    """The one NUL-terminated name that is the whole body."""
    name = bytes(body)
    if not name.endswith(b"\0") or b"\0" in name[:-1]:
        raise MalformedRequest(f"a name of {len(name)} bytes without its terminator")
    return name[:-1]


def parse_getxattr(body: memoryview) -> tuple[int, bytes]:
    """(room in bytes for the value, 0 = only its size is asked; name)."""
    return GETXATTR_IN.unpack_from(body)[0], parse_name(body[GETXATTR_IN.size :])


def parse_batch_forget(body: memoryview) -> list[tuple[int, int]]:
    """(node id, lookups to take off) pairs."""
    (count, _) = BATCH_FORGET_IN.unpack_from(body)
    pairs = body[BATCH_FORGET_IN.size : BATCH_FORGET_IN.size + count * FORGET_ONE.size]
    if len(pairs) != count * FORGET_ONE.size:
        raise MalformedRequest(f"BATCH_FORGET of {count} nodes in {len(body)} bytes")
    return list(FORGET_ONE.iter_unpack(pairs))


class IoctlRequest(NamedTuple):
    handle_id: int
    command: int
    data: bytes
    out_size_bytes: int


def parse_ioctl(body: memoryview) -> IoctlRequest:
    handle_id, _flags, command, _argument, in_size_bytes, out_size_bytes = IOCTL_IN.unpack_from(body)
    data = bytes(body[IOCTL_IN.size : IOCTL_IN.size + in_size_bytes])
    if len(data) != in_size_bytes:
        raise MalformedRequest(f"IOCTL with {len(data)} of {in_size_bytes} bytes")
    return IoctlRequest(handle_id, command, data, out_size_bytes)


# --- replies ---------------------------------------------------------------------------------------------


class Lifetime(NamedTuple):
    """How long the kernel may trust an answer without asking again."""

    seconds: int
    nanoseconds: int


def lifetime(duration_s: float) -> Lifetime:
    nanoseconds = round(duration_s * 1e9)
    return Lifetime(nanoseconds // 10**9, nanoseconds % 10**9)


def pack_entry(node_id: int, entry: Lifetime, attributes: Lifetime, fields: Fields) -> bytes:
    """LOOKUP's answer. Generation is always 0: a node id is never used twice."""
    return _ENTRY_OUT.pack(
        node_id, 0, entry.seconds, attributes.seconds, entry.nanoseconds, attributes.nanoseconds, *fields
    )


_NO_FIELDS: Fields = (0,) * 16


def pack_negative_entry(entry: Lifetime) -> bytes:
    """ "No such name", to be remembered for a while (a plain ENOENT is not)."""
    return pack_entry(0, entry, Lifetime(0, 0), _NO_FIELDS)


def pack_attributes(attributes: Lifetime, fields: Fields) -> bytes:
    return _ATTR_OUT.pack(attributes.seconds, attributes.nanoseconds, 0, *fields)


def pack_open(handle_id: int, flags: int, backing_id: int = 0) -> bytes:
    return _OPEN_OUT.pack(handle_id, flags, backing_id)


def dirent_bytes(name: bytes) -> int:
    return _DIRENT.size + len(name) + (-len(name) & 7)


def pack_dirent(inode_number: int, next_position: int, kind: int, name: bytes) -> bytes:
    """``kind``: the file type bits of the mode, shifted down (``DT_*``)."""
    return _DIRENT.pack(inode_number, next_position, len(name), kind) + name + bytes(-len(name) & 7)


def direntplus_bytes(name: bytes) -> int:
    return _DIRENTPLUS.size + len(name) + (-len(name) & 7)


def pack_direntplus(  # one flat call: a listing packs thousands
    node_id: int, entry: Lifetime, attributes: Lifetime, fields: Fields, next_position: int, kind: int, name: bytes
) -> bytes:
    """An entry as LOOKUP would give it, and the directory entry. Node id 0: not looked up (``.`` and ``..``)."""
    return (
        _DIRENTPLUS.pack(
            node_id,
            0,
            entry.seconds,
            attributes.seconds,
            entry.nanoseconds,
            attributes.nanoseconds,
            *fields,
            fields[0],
            next_position,
            len(name),
            kind,
        )
        + name
        + bytes(-len(name) & 7)
    )


def bare_fields(inode_number: int, mode: int) -> Fields:
    """What a READDIRPLUS entry without a node needs: number and type."""
    return (inode_number, 0, 0, 0, 0, 0, 0, 0, 0, mode, 0, 0, 0, 0, 0, 0)


def pack_statfs(total_bytes: int, file_count: int, block_bytes: int, name_max_bytes: int) -> bytes:
    """A full, read-only file system."""
    blocks = -(-total_bytes // block_bytes)
    return _STATFS_OUT.pack(blocks, 0, 0, file_count, 0, block_bytes, name_max_bytes, block_bytes, 0, 0, 0, 0)


def pack_xattr_size(size_bytes: int) -> bytes:
    return _XATTR_SIZE.pack(size_bytes, 0)


def pack_ioctl(result: int, data: bytes) -> bytes:
    return _IOCTL_OUT.pack(result, 0, 0, 0) + data


def pack_backing_map(fd: int) -> bytearray:
    return bytearray(_BACKING_MAP.pack(fd, 0, 0))


def pack_backing_id(backing_id: int) -> bytearray:
    return bytearray(_BACKING_ID.pack(backing_id))


# --- notifications ---------------------------------------------------------------------------------------


def _pack_notification(code: Notify, body: bytes) -> bytes:
    return OUT_HEADER.pack(OUT_HEADER_BYTES + len(body), code, 0) + body


def notify_attributes(node_id: int) -> bytes:
    """Forget the attributes of a node; a negative offset keeps its pages."""
    return _pack_notification(Notify.INVAL_INODE, _INVAL_INODE.pack(node_id, -1, 0))


def notify_entry(parent_id: int, name: bytes) -> bytes:
    """Forget what stands, or does not stand, at a name."""
    return _pack_notification(Notify.INVAL_ENTRY, _INVAL_ENTRY.pack(parent_id, len(name), 0) + name + b"\0")


def notify_delete(parent_id: int, child_id: int, name: bytes) -> bytes:
    """The name is gone: open handles see no links, inotify watchers are told. Refused for a directory in use."""
    return _pack_notification(Notify.DELETE, _DELETE.pack(parent_id, child_id, len(name), 0) + name + b"\0")


def notify_resend() -> bytes:
    """Ask for every unanswered request again; each comes with bit 63 of its unique id set."""
    return _pack_notification(Notify.RESEND, b"")


def notify_epoch() -> bytes:
    """Have every cached name looked up again."""
    return _pack_notification(Notify.INC_EPOCH, b"")
