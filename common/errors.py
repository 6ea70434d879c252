"""The one exception tree, ordered by who must act.

Every class carries what the two edges need: ``wire_code`` for an ERROR frame and ``errno`` for the reply to
the kernel. A foreign error (``OSError``, ``sqlite3.Error``, ``ssl.SSLError``) is translated into this tree
once, where it enters, and nowhere else. A message says what was seen, what is allowed, and what to do.
"""

from __future__ import annotations

import errno as errno_codes
from typing import ClassVar


class HeadraceError(Exception):
    """Anything Headrace raises on purpose.

    ``wire_code``: short stable name, sent in ERROR frames (PROTOCOL.md lists them).
    ``errno``: what a reader at the mount gets when this error ends its request.
    ``retryable``: the same request may succeed later without anybody acting.
    ``logged``: whoever knew most about it has logged it; further up it is only answered.
    """

    wire_code: ClassVar[str] = "internal"
    errno: ClassVar[int] = errno_codes.EIO
    retryable: ClassVar[bool] = False
    logged: bool = False


# --- the person who started the command must act (exit code 2) -----------------------------------------


class UsageError(HeadraceError):
    """A flag, a setting, a path or a combination that cannot work."""

    wire_code = "usage"


class CacheDirectoryError(UsageError):
    """The cache directory is foreign, in use, too small or not writable."""

    wire_code = "cache-directory"


class MountpointError(UsageError):
    """The mountpoint is missing, not a directory, not empty or taken."""

    wire_code = "mountpoint"


class UnknownDataset(UsageError):
    """The hub does not serve a dataset of this name."""

    wire_code = "unknown-dataset"


class AuthenticationFailed(UsageError):
    """One end did not show the other who it is: a certificate or a token that is missing, wrong or out of date."""

    wire_code = "authentication"


class NotAllowed(UsageError):
    """The hub knows who asks, and does not give this dataset to it."""

    wire_code = "not-allowed"


class RevisionUnavailable(UsageError):
    """The hub cannot give the tree of the revision or snapshot asked for; the message says which it can."""

    wire_code = "revision-unavailable"


class OrderError(UsageError):
    """An order of coming reads (a plan, a recipe, what was learned) that cannot be used: its maker must act."""

    wire_code = "order"


class DamagedOrder(OrderError):
    """An order file that cannot be believed: torn, changed, or not an order at all. Make it again."""

    wire_code = "damaged-order"


class OrderTooNew(OrderError):
    """An order file of a later format than this program reads."""

    wire_code = "order-too-new"


class PlanTooLong(OrderError):
    """An order with more steps, files or lanes than are kept (limits.py)."""

    wire_code = "plan-too-long"


# --- the operator of the other end, or the network, must act ---------------------------------------------


class PeerError(HeadraceError):
    """The other end, or the way there, failed us."""

    wire_code = "peer"


class ProtocolError(PeerError):
    """Bytes or a message that PROTOCOL.md does not allow; the connection is closed."""

    wire_code = "protocol"


class VersionMismatch(PeerError):
    """The two ends share no protocol version."""

    wire_code = "version-mismatch"


class HubUnreachable(PeerError):
    """No connection to the hub now. Never means "deleted" or "empty"."""

    wire_code = "unreachable"
    retryable = True


class DeadlineExceeded(PeerError):
    """The time a request was given has passed."""

    wire_code = "deadline"
    retryable = True


class Overloaded(PeerError):
    """A limit of the other end was reached (limits.py); ask again later."""

    wire_code = "overloaded"
    retryable = True


class Cancelled(PeerError):
    """The request was withdrawn by the one who made it."""

    wire_code = "cancelled"
    retryable = True


# --- the data moved on ----------------------------------------------------------------------------------


class StaleVersion(HeadraceError):
    """The file changed at the hub; this version's bytes can no longer be had."""

    wire_code = "stale"
    errno = errno_codes.ESTALE


class RevisionGone(HeadraceError):
    """The change log no longer reaches back to the revision asked for: resync from a snapshot."""

    wire_code = "revision-gone"
    retryable = True


# --- the operator of this host must act -----------------------------------------------------------------


class DiskError(HeadraceError):
    """A disk of this host answered with an error."""

    wire_code = "disk"
    retryable = True


class SourceReadError(DiskError):
    """The hub could not read the file it serves."""

    wire_code = "source-read"


class CacheWriteError(DiskError):
    """The cache disk refused a write (full, read-only, failing): the caller goes on without it."""

    wire_code = "cache-write"


class CorruptData(HeadraceError):
    """Bytes that do not match their digest; never handed to a reader."""

    wire_code = "corrupt"
    retryable = True


def _tree(cls: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _tree(child))]


BY_WIRE_CODE: dict[str, type[HeadraceError]] = {cls.wire_code: cls for cls in _tree(HeadraceError)}


def from_wire(code: str, message: str) -> HeadraceError:
    """The error a peer reported; a code of a newer peer becomes a plain :class:`PeerError`."""
    return BY_WIRE_CODE.get(code, PeerError)(message)
