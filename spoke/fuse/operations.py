"""What each request of the kernel means: names from the tree, bytes from a Reader, everything else refused.

A handler gets (node id, body, task id) and returns the reply's bytes, an errno (int), a coroutine that gives the bytes
later, or None when the kernel expects no reply. It raises HeadraceError, whose ``errno`` is the reply. Nothing here
touches the device or a clock, and nothing waits except the coroutine of a READ, or of an OPEN that the hub must confirm.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from common.entries import NAME_MAX_BYTES, Entry, Kind
from common.errors import HeadraceError, StaleVersion
from common.limits import FUSE_NEGATIVE_LIFETIME_S
from spoke.fuse import kernel
from spoke.fuse.attributes import Ownership, extended
from spoke.fuse.inodes import Inode, InodeTable
from spoke.fuse.kernel import Opcode
from spoke.fuse.ledger import HandleRecord, Ledger, NodeRecord
from spoke.fuse.listing import Listing, list_virtual
from spoke.fuse.passthrough import Passthrough
from spoke.fuse.virtual import DIRECTORY_ID, DIRECTORY_NAME, VirtualDirectory, VirtualFile
from spoke.namespace.tree import Event, Invalidation, Node, Tree

Bytes = bytes | bytearray | memoryview
Reply = Bytes | int | Coroutine[Any, Any, Bytes] | None
Handler = Callable[[int, memoryview, int], Reply]

DEFAULT_LIFETIME_S = 3600.0


class ShortRead(HeadraceError):
    """A reader gave another number of bytes than asked for. Passed on, the kernel would take it for the end of the file."""

    wire_code = "short-read"


class FileHandle(Protocol):
    """One open file: it sees one version for its whole life."""

    @property
    def version(self) -> bytes: ...

    @property
    def size_bytes(self) -> int: ...


HandleT = TypeVar("HandleT", bound=FileHandle)


class Reader(Protocol[HandleT]):
    """Where the bytes come from. All but ``read`` are called in the event loop and return at once.

    ``task_id``: the thread that asks (its id in our pid namespace, 0 if it is not visible from it). Reads never pass the end
    of the version and want exactly ``length_bytes``. Any HeadraceError is answered with its ``errno``. ``read`` is cancelled when the
    thread that waits is killed or interrupted. ``waited_s``: how long it waited with earlier workers.
    ``passthrough_fd``: a descriptor that holds the whole verified version and
    stays open until ``release``, or None. ``reopen``: a handle that an earlier worker gave out, by what it stood for; ``lent``: its
    reads are the kernel's own, and its version is to be kept until ``release``, as ``keep`` asks of an open handle.
    """

    def open(self, node: Node, task_id: int) -> HandleT: ...

    def reopen(self, path: bytes, version: bytes, size_bytes: int, lent: bool) -> HandleT: ...

    def read_nowait(self, handle: HandleT, offset_bytes: int, length_bytes: int, task_id: int) -> Bytes | None: ...

    async def read(
        self, handle: HandleT, offset_bytes: int, length_bytes: int, task_id: int, waited_s: float
    ) -> Bytes: ...

    def release(self, handle: HandleT) -> None: ...

    def passthrough_fd(self, handle: HandleT) -> int | None: ...

    def keep(self, handle: HandleT) -> None: ...


class Notices(Protocol):
    """Where news for the kernel is queued (see notifier.Notifier)."""

    def entry(self, parent_id: int, name: bytes) -> None: ...

    def deleted(self, parent_id: int, child_id: int, name: bytes) -> None: ...

    def attributes(self, node_id: int) -> None: ...


class _OpenFile(Generic[HandleT]):
    __slots__ = ("handle", "inode", "passthrough", "size_bytes", "slot")

    def __init__(self, inode: Inode, handle: HandleT, passthrough: bool, slot: int = -1) -> None:
        self.inode = inode
        self.handle = handle
        self.size_bytes = handle.size_bytes
        self.passthrough = passthrough
        self.slot = slot


class Operations(Generic[HandleT]):
    """One mount's state: node ids, open files, open directories.

    ``cached_fraction``: how much of a file's version is cached, 0 to 1. ``virtual_files``: what ``.headrace/`` holds.
    ``confirm``, if set, is awaited with a file's path before each open; when it returns the tree has the file as it is at the hub.
    ``lifetime_s``: how long the kernel may trust names and attributes; it is told of changes, so long. ``ledger``: where node ids
    and open files are written down for the next worker, and where those of the one before are taken over from.
    ``request_id``: the unique of the request that is being handled; ``waited_s``: how long it has waited with earlier workers.
    """

    def __init__(
        self,
        tree: Tree,
        reader: Reader[HandleT],
        notices: Notices,
        passthrough: Passthrough,
        *,
        ownership: Ownership | None = None,
        cached_fraction: Callable[[Entry], float] = lambda _entry: 0.0,
        virtual_files: Mapping[bytes, VirtualFile] | None = None,
        confirm: Callable[[bytes], Awaitable[None]] | None = None,
        lifetime_s: float = DEFAULT_LIFETIME_S,
        negative_lifetime_s: float = FUSE_NEGATIVE_LIFETIME_S,
        ledger: Ledger | None = None,
        request_id: Callable[[], int] = lambda: 0,
        waited_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._tree = tree
        self._reader = reader
        self._notices = notices
        self._passthrough = passthrough
        self._ownership = ownership if ownership is not None else Ownership.of_this_process()
        self._cached_fraction = cached_fraction
        self._virtual = VirtualDirectory(virtual_files or {}, self._ownership.uid, self._ownership.gid)
        self._confirm = confirm
        self._lifetime = kernel.lifetime(lifetime_s)
        self._negative = kernel.pack_negative_entry(kernel.lifetime(negative_lifetime_s))
        self._ledger = ledger
        self._request_id = request_id
        self._waited_s = waited_s
        self._inodes = InodeTable(tree.root, ledger)
        self._files: dict[int, _OpenFile[HandleT]] = {}
        self._listings: dict[int, Listing] = {}
        self._contents: dict[int, bytes] = {}
        self._cached_by_version: dict[bytes, set[Inode]] = {}
        self._last_handle_id = ledger.handle_ids_from(1) - 1 if ledger is not None else 0
        self._inherited_handle_ids = self._last_handle_id
        self._reopened: dict[int, int] = {}
        self.handlers: dict[int, Handler] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._batch_forget,
            Opcode.GETATTR: self._getattr,
            Opcode.READLINK: self._readlink,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.RELEASE: self._release,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.RELEASEDIR: self._releasedir,
            Opcode.STATFS: self._statfs,
            Opcode.ACCESS: self._access,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.IOCTL: self._ioctl,
            # FLUSH, FSYNC, LSEEK, POLL, STATX and the rest: ENOSYS, which the kernel remembers and acts on by itself.
            **dict.fromkeys(kernel.WRITING, _refuse_write),
        }
        if ledger is not None:
            ledger.moved = self._moved
            self._take_over(*ledger.records())

    # --- what the daemon tells and asks ------------------------------------------------------------------

    @property
    def open_files(self) -> int:
        return len(self._files)

    @property
    def known_nodes(self) -> int:
        """Node ids the kernel holds."""
        return len(self._inodes)

    def known_names(self) -> Iterable[tuple[int, bytes]]:
        """(parent's node id, name) of all names the kernel may hold."""
        return self._inodes.cached_names()

    def changed(self, invalidations: Iterable[Invalidation]) -> None:
        """The tree changed (what Tree.apply returned): give changed files new node ids and have the kernel told.

        Between the change and this call answers are right already; what the kernel cached before is not.
        """
        for news in invalidations:
            parent = self._inodes.known(news.parent)
            if news.event is Event.APPEARED:
                if parent is not None:
                    self._notices.entry(parent.node_id, news.name)
                continue
            node = news.node
            if node is None:
                continue
            known = self._inodes.known(node)
            if news.event is Event.ATTRIBUTES or (news.event is Event.CONTENT and node.is_directory):
                if known is not None:
                    known.packed = node.packed
                    self._notices.attributes(known.node_id)
                continue
            self._inodes.retire(node)
            if known is None or parent is None:
                continue
            if news.event is Event.REMOVED:
                self._notices.deleted(parent.node_id, known.node_id, news.name)
            else:
                self._notices.entry(parent.node_id, news.name)

    def became_whole(self, version: bytes) -> None:
        """``version`` is now whole and verified in the cache: names that hold it open the plain way get a new node id, so
        that later opens can use passthrough (the kernel refuses to mix both on one node id)."""
        if not self._passthrough.status().live:
            return
        for inode in self._cached_by_version.get(version, ()):
            self._renew(inode)

    def forget_bytes(self, versions: Collection[bytes]) -> None:
        """What the kernel holds of them in memory goes too, once nobody has it open: their names get new node ids."""
        for inode in self._inodes.current_files():
            if inode.entry.version in versions:
                self._renew(inode)

    def _renew(self, inode: Inode) -> None:
        node = inode.node
        if self._inodes.known(node) is not inode:
            return
        self._inodes.retire(node)
        parent = self._inodes.known(node.parent) if node.parent is not None else None
        if parent is not None:
            self._notices.entry(parent.node_id, node.name)

    def release_all(self) -> None:
        """The connection is gone and with it every handle: tell the Reader."""
        for handle_id in list(self._files):
            self._close_file(handle_id)
        self._listings.clear()
        self._contents.clear()

    def let_go(self) -> None:
        """The next worker takes over: the Reader's handles end here, what the kernel and the ledger hold stays."""
        for file in self._files.values():
            self._reader.release(file.handle)
        self._files.clear()

    def _take_over(self, nodes: list[NodeRecord], handles: list[HandleRecord]) -> None:
        assert self._ledger is not None
        opened = {record.node_id for record in handles}
        for node_record in nodes:
            # Without lookups: written down, but the reply that would have told the kernel never left.
            if node_record.lookups or node_record.node_id in opened:
                self._inodes.restore(node_record, self._tree)
            else:
                self._ledger.drop(node_record.slot)
        for record in handles:
            inode = self._inodes.get(record.node_id)
            if inode is None:
                self._ledger.drop(record.slot)
                continue
            entry, lent = inode.entry, record.backing_id != 0
            handle = self._reader.reopen(inode.node.path(), entry.version, entry.size_bytes, lent)
            self._files[record.handle_id] = _OpenFile(inode, handle, lent, record.slot)
            self._reopened[record.unique] = record.handle_id
            if lent:
                self._passthrough.restore(entry.version, record.backing_id)
            self._count_open(inode, lent)

    def _moved(self, is_handle: bool, number: int, slot: int) -> None:
        if is_handle:
            self._files[number].slot = slot
        else:
            self._inodes.moved(number, slot)

    def _count_open(self, inode: Inode, passthrough: bool) -> None:
        if passthrough:
            inode.passthrough_opens += 1
        else:
            inode.cached_opens += 1
            self._cached_by_version.setdefault(inode.entry.version, set()).add(inode)

    # --- names -------------------------------------------------------------------------------------------

    def _lookup(self, node_id: int, body: memoryview, _task_id: int) -> Reply:
        name = kernel.parse_name(body)
        if len(name) > NAME_MAX_BYTES:
            return errno.ENAMETOOLONG
        if self._virtual.owns(node_id):
            file_id = self._virtual.find(name) if node_id == DIRECTORY_ID else None
            return errno.ENOENT if file_id is None else self._virtual_entry(file_id)
        if node_id == kernel.ROOT_NODE_ID and name == DIRECTORY_NAME:
            return self._virtual_entry(DIRECTORY_ID)
        parent = self._inodes.get(node_id)
        if parent is None:
            return errno.ESTALE
        node = self._tree.lookup(parent.node, name)
        if node is None:
            # In a removed directory nothing can appear and nobody would be told: do not have it remembered.
            return errno.ENOENT if parent.is_outdated else self._negative
        inode = self._inodes.current(node, 1)
        return kernel.pack_entry(inode.node_id, self._lifetime, self._lifetime, self._fields(inode))

    def _fields(self, inode: Inode) -> kernel.Fields:
        node = inode.node
        links = 1 if node.parent is not None or inode is self._inodes.root else 0
        return self._ownership.fields(node.serial, node.name, inode.entry, links)

    def _virtual_entry(self, node_id: int) -> bytes:
        return kernel.pack_entry(node_id, self._lifetime, self._lifetime, self._virtual.fields(node_id))

    def _forget(self, node_id: int, body: memoryview, _task_id: int) -> Reply:
        self._inodes.forget(node_id, kernel.FORGET_IN.unpack_from(body)[0])
        return None

    def _batch_forget(self, _node_id: int, body: memoryview, _task_id: int) -> Reply:
        for node_id, lookups in kernel.parse_batch_forget(body):
            self._inodes.forget(node_id, lookups)
        return None

    def _getattr(self, node_id: int, _body: memoryview, _task_id: int) -> Reply:
        if self._virtual.owns(node_id):
            return kernel.pack_attributes(self._lifetime, self._virtual.fields(node_id))
        inode = self._inodes.get(node_id)
        if inode is None:
            return errno.ESTALE
        if inode is self._inodes.root:
            inode.packed = inode.node.packed
        return kernel.pack_attributes(self._lifetime, self._fields(inode))

    def _readlink(self, node_id: int, _body: memoryview, _task_id: int) -> Reply:
        inode = self._inodes.get(node_id)
        if inode is None:
            return errno.ESTALE if not self._virtual.owns(node_id) else errno.EINVAL
        return inode.entry.target if inode.kind is Kind.SYMLINK else errno.EINVAL

    def _access(self, _node_id: int, body: memoryview, _task_id: int) -> Reply:
        # default_permissions has the kernel check modes itself; writing is what is left to refuse.
        return errno.EROFS if kernel.ACCESS_IN.unpack_from(body)[0] & os.W_OK else b""

    def _statfs(self, _node_id: int, _body: memoryview, _task_id: int) -> Reply:
        tree = self._tree
        return kernel.pack_statfs(tree.file_bytes, tree.entry_count + 1, kernel.PAGE_BYTES, NAME_MAX_BYTES)

    # --- directories -------------------------------------------------------------------------------------

    def _new_handle_id(self) -> int:
        self._last_handle_id += 1
        if self._ledger is not None:
            self._ledger.giving_out(self._last_handle_id)
        return self._last_handle_id

    def _opendir(self, node_id: int, _body: memoryview, _task_id: int) -> Reply:
        # Answered, although the kernel could do without: positions of a listing mean something only within one handle.
        if node_id == DIRECTORY_ID:
            return kernel.pack_open(0, 0)
        inode = self._inodes.get(node_id)
        if inode is None:
            return errno.ESTALE
        if inode.kind is not Kind.DIRECTORY:
            return errno.ENOTDIR
        handle_id = self._new_handle_id()
        self._listings[handle_id] = Listing(inode)
        return kernel.pack_open(handle_id, 0)

    def _releasedir(self, _node_id: int, body: memoryview, _task_id: int) -> Reply:
        self._listings.pop(kernel.RELEASE_IN.unpack_from(body)[0], None)
        return b""

    def _readdir(self, node_id: int, body: memoryview, _task_id: int) -> Reply:
        return self._list(node_id, body, plus=False)

    def _readdirplus(self, node_id: int, body: memoryview, _task_id: int) -> Reply:
        return self._list(node_id, body, plus=True)

    def _list(self, node_id: int, body: memoryview, plus: bool) -> Reply:
        handle_id, position, room_bytes, *_ = kernel.READ_IN.unpack_from(body)
        if node_id == DIRECTORY_ID:
            return list_virtual(self._virtual, position, room_bytes, plus)
        listing = self._listings.get(handle_id)
        if listing is None:
            inode = self._inodes.get(node_id)
            if inode is None or handle_id > self._inherited_handle_ids:
                return errno.EBADF
            listing = self._listings[handle_id] = Listing(inode, resumed=True)
        if plus:
            return listing.plus(position, room_bytes, self._inodes, self._ownership, self._lifetime)
        return listing.plain(position, room_bytes)

    # --- files -------------------------------------------------------------------------------------------

    def _open(self, node_id: int, body: memoryview, task_id: int) -> Reply:
        flags = kernel.OPEN_IN.unpack_from(body)[0]
        if flags & (os.O_WRONLY | os.O_RDWR):
            return errno.EROFS
        virtual_file = self._virtual.file(node_id)
        if virtual_file is not None:
            handle_id = self._new_handle_id()
            self._contents[handle_id] = virtual_file.content()
            return kernel.pack_open(handle_id, kernel.FOPEN_DIRECT_IO | kernel.FOPEN_NOFLUSH)
        inode = self._inodes.get(node_id)
        # ESTALE makes the kernel look the path up again and open what it finds then: the new version, under its node id.
        if inode is None or inode.is_outdated:
            return errno.ESTALE
        if inode.kind is not Kind.FILE:
            return errno.EISDIR if inode.kind is Kind.DIRECTORY else errno.ELOOP
        unique = self._request_id()
        if unique & kernel.UNIQUE_RESEND:
            # The worker before wrote this very open down, and died before it could answer.
            unique &= ~kernel.UNIQUE_RESEND
            self._close_file(self._reopened.pop(unique, 0))
        if self._confirm is not None:
            return self._open_confirmed(self._confirm, inode, task_id, unique)
        return self._open_now(inode, task_id, unique)

    async def _open_confirmed(
        self, confirm: Callable[[bytes], Awaitable[None]], inode: Inode, task_id: int, unique: int
    ) -> Bytes:
        path = inode.node.path()
        await confirm(path)
        opened = errno.ESTALE if inode.is_outdated else self._open_now(inode, task_id, unique)
        if isinstance(opened, int):
            raise StaleVersion(f"{path!r} is another version by now")
        return opened

    def _open_now(self, inode: Inode, task_id: int, unique: int) -> Bytes | int:
        handle = self._reader.open(inode.node, task_id)
        try:
            if handle.version != inode.entry.version or handle.size_bytes != inode.entry.size_bytes:
                raise ShortRead(f"the reader opened another version of {inode.node.path()!r} than asked for")
            backing_id = self._backing(inode, handle)
        except BaseException:
            self._reader.release(handle)
            raise
        if backing_id is None and inode.passthrough_opens:
            self._reader.release(handle)
            self._inodes.retire(inode.node)
            return errno.ESTALE
        handle_id = self._new_handle_id()
        file = self._files[handle_id] = _OpenFile(inode, handle, backing_id is not None)
        self._count_open(inode, file.passthrough)
        if self._ledger is not None:
            file.slot = self._ledger.add_handle(handle_id, inode.node_id, unique, backing_id or 0)
        if backing_id is not None:
            return kernel.pack_open(handle_id, kernel.FOPEN_PASSTHROUGH | kernel.FOPEN_NOFLUSH, backing_id)
        return kernel.pack_open(handle_id, kernel.FOPEN_KEEP_CACHE | kernel.FOPEN_NOFLUSH)

    def _backing(self, inode: Inode, handle: HandleT) -> int | None:
        if inode.cached_opens or not self._passthrough.status().live:
            return None
        fd = self._reader.passthrough_fd(handle)
        if fd is None:
            if not self._passthrough.granted_before(handle.version):
                return None
            self._reader.keep(handle)  # verified by an earlier worker, and not again since
        return self._passthrough.acquire(handle.version, fd)

    def _release(self, _node_id: int, body: memoryview, _task_id: int) -> Reply:
        handle_id = kernel.RELEASE_IN.unpack_from(body)[0]
        if self._contents.pop(handle_id, None) is None:
            self._close_file(handle_id)
        return b""

    def _close_file(self, handle_id: int) -> None:
        file = self._files.pop(handle_id, None)
        if file is None:
            return
        inode, version = file.inode, file.handle.version
        if self._ledger is not None:
            self._ledger.drop(file.slot)
        if file.passthrough:
            inode.passthrough_opens -= 1
            self._passthrough.release(version)
        else:
            inode.cached_opens -= 1
            if not inode.cached_opens:
                holders = self._cached_by_version[version]
                holders.discard(inode)
                if not holders:
                    del self._cached_by_version[version]
        self._inodes.drop_if_unused(inode)
        self._reader.release(file.handle)

    def _read(self, node_id: int, body: memoryview, task_id: int) -> Reply:
        handle_id, offset_bytes, room_bytes, _, _, _, _ = kernel.READ_IN.unpack_from(body)
        file = self._files.get(handle_id)
        if file is None:
            content = self._contents.get(handle_id)
            if content is None:
                return self._begin_again(node_id, handle_id, offset_bytes, room_bytes)
            return content[offset_bytes : offset_bytes + room_bytes]
        length_bytes = file.size_bytes - offset_bytes
        if length_bytes > room_bytes:
            length_bytes = room_bytes
        elif length_bytes <= 0:
            return b""
        data = self._reader.read_nowait(file.handle, offset_bytes, length_bytes, task_id)
        if data is None:
            return self._read_later(file, offset_bytes, length_bytes, task_id, self._waited_s())
        if len(data) != length_bytes:
            raise _short(file, offset_bytes, length_bytes, len(data))
        return data

    def _begin_again(self, node_id: int, handle_id: int, offset_bytes: int, room_bytes: int) -> Bytes | int:
        """A file of ``.headrace/`` that an earlier worker opened: from its start or not at all, never of two contents."""
        virtual_file = self._virtual.file(node_id)
        if virtual_file is None or handle_id > self._inherited_handle_ids:
            return errno.EBADF
        if offset_bytes:
            return errno.ESTALE
        content = self._contents[handle_id] = virtual_file.content()
        return content[:room_bytes]

    async def _read_later(
        self, file: _OpenFile[HandleT], offset_bytes: int, length_bytes: int, task_id: int, waited_s: float
    ) -> Bytes:
        data = await self._reader.read(file.handle, offset_bytes, length_bytes, task_id, waited_s)
        if len(data) != length_bytes:
            raise _short(file, offset_bytes, length_bytes, len(data))
        return data

    # --- the rest ----------------------------------------------------------------------------------------

    def _extended(self, node_id: int) -> Mapping[bytes, Callable[[], bytes]]:
        inode = self._inodes.get(node_id)
        return {} if inode is None else extended(inode.entry, self._tree.revision, self._cached_fraction)

    def _getxattr(self, node_id: int, body: memoryview, _task_id: int) -> Reply:
        room_bytes, name = kernel.parse_getxattr(body)
        if not name.startswith(b"user."):
            # security.capability and the ACLs: to the kernel the same as ENODATA, and `ls` does not ask again. Never
            # ENOSYS, which would turn off our own attributes for the life of the mount.
            return errno.EOPNOTSUPP
        value = self._extended(node_id).get(name)
        return errno.ENODATA if value is None else _fit(value(), room_bytes)

    def _listxattr(self, node_id: int, body: memoryview, _task_id: int) -> Reply:
        room_bytes = kernel.GETXATTR_IN.unpack_from(body)[0]
        return _fit(b"".join(name + b"\0" for name in self._extended(node_id)), room_bytes)

    def _ioctl(self, node_id: int, body: memoryview, task_id: int) -> Reply:
        virtual_file = self._virtual.file(node_id)
        if virtual_file is None or virtual_file.ioctl is None:
            return errno.ENOTTY  # TCGETS of every Python open(), mostly
        request = kernel.parse_ioctl(body)
        if request.command == kernel.TCGETS:
            return errno.ENOTTY
        answered = virtual_file.ioctl(request.command, request.data, request.out_size_bytes, task_id)
        if answered is None:
            return errno.ENOTTY
        result, answer = answered
        return kernel.pack_ioctl(result, answer[: request.out_size_bytes])


def _refuse_write(_node_id: int, _body: memoryview, _task_id: int) -> Reply:
    return errno.EROFS


def _fit(value: bytes, room_bytes: int) -> Bytes | int:
    """An extended attribute's answer: its size when no room is offered, ERANGE when it does not fit."""
    if room_bytes == 0:
        return kernel.pack_xattr_size(len(value))
    return errno.ERANGE if len(value) > room_bytes else value


def _short(file: _OpenFile[Any], offset_bytes: int, wanted_bytes: int, got_bytes: int) -> ShortRead:
    return ShortRead(
        f"{file.inode.node.path()!r}: {got_bytes} bytes for {wanted_bytes} at {offset_bytes} of {file.size_bytes}"
    )
