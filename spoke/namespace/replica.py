"""Follows the hub's change stream: what to believe, when to resync, and when to keep the old tree in spite of the hub.

Sans-I/O: messages and ``now_s`` go in; what the kernel must be told, what the journal must keep and what to ask the
hub comes out. Changes apply only where they follow; anything else means asking again, and until the answer is whole
the tree stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from common import limits
from common.entries import Kind
from common.errors import ProtocolError
from common.log import get_logger
from common.wire.messages import Changes, Heartbeat, SnapshotPage, Subscribe
from spoke.namespace.pin import Pin
from spoke.namespace.resync import StagedSnapshot
from spoke.namespace.suspicion import Losses, Suspicion, could_lose_much, forecast, gone_and_come, is_suspicious
from spoke.namespace.tree import Invalidation, SequenceBroken, Tree

log = get_logger(__name__)

FeedMessage = SnapshotPage | Changes | Heartbeat


class Feed(Enum):
    """Where we stand in the hub's stream."""

    BROKEN = "broken"  # nothing fits until we subscribe (again)
    AWAITING = "awaiting"  # subscribed; what was under way before is let pass
    STAGING = "staging"  # pages of a snapshot arrive
    FOLLOWING = "following"


@dataclass(slots=True)
class Outcome:
    """What a step asks of the one who drives the replica.

    ``invalidations``: tell the kernel, in order. ``journal``: append these changes. ``rewrite``: the tree was replaced,
    write it anew. ``resubscribe``: send what ``subscribe_request()`` says (a new connection serves as well).
    ``more``: call ``proceed`` until it is False, before the next ``receive``; other work may go in between.
    """

    invalidations: list[Invalidation] = field(default_factory=list)
    journal: Changes | None = None
    rewrite: bool = False
    resubscribe: bool = False
    more: bool = False


class CatalogHeld(NamedTuple):
    """``since_s``: by the clock that the replica is given."""

    reason: str
    since_s: float


class Replica:
    """``tree`` as loaded from the journal, or empty. One owner calls everything, from one thread.

    Pinned, the tree shown is that of one revision: it is not usable before it is reached, and never changes afterwards.

    ``suspicious``: what the hub announced and was not believed, or None; the tree is then the old one.
    """

    catalog_held: CatalogHeld | None = None
    """While the hub says that it holds its catalog as it was."""

    def __init__(
        self, tree: Tree, pin: Pin | None = None, *, pin_reached: bool = False, suspicious: Suspicion | None = None
    ) -> None:
        """``pin``: stay at one revision; ``pin_reached``: ``tree`` is the one it asks for. ``suspicious``: the hub was, when
        this spoke stopped."""
        self.tree = tree
        self.pin = pin
        self.pin_reached = pin_reached
        self.suspicious: Suspicion | None = suspicious if pin is None and tree.entry_count else None
        self.feed = Feed.BROKEN
        self.head_revision = tree.revision
        self.resyncs_total = 0
        self._force_snapshot = False
        self._asked_s = 0.0
        self._heard_s: float | None = None
        self._staged: StagedSnapshot | None = None
        self._work: Iterator[Outcome] | None = None
        self._held: StagedSnapshot | Changes | None = None
        self._missed = False  # the hub said more while it was suspicious
        self._recheck_at_s = 0.0
        self._recheck_after_s = limits.SUSPICIOUS_RECHECK_S
        self._window_start_s = 0.0
        self._window_lost = self.suspicious.lost_before if self.suspicious is not None else 0

    @property
    def usable(self) -> bool:
        """A tree has been loaded, from disk or from the hub."""
        return self.tree.catalog_id != b"" and (self.pin is None or self.pin_reached)

    @property
    def is_building(self) -> bool:
        """A first snapshot is being taken in: many objects are made, and none is garbage."""
        return self._staged is not None and self._staged.is_first

    @property
    def _wants_snapshot(self) -> bool:
        return self._force_snapshot or self.tree.catalog_id == b""

    def staleness_s(self, now_s: float) -> float:
        """Time since the hub last confirmed this tree, or a change of it; infinite if it never did."""
        if self.pin_reached:
            return 0.0  # what is pinned does not age
        return max(0.0, now_s - self._heard_s) if self._heard_s is not None else float("inf")

    # --- the stream --------------------------------------------------------------------------------------

    def subscribe_request(self, now_s: float) -> Subscribe:
        """What to send now; whatever was staged before is dropped."""
        assert self._work is None, "proceed() first: a snapshot is being applied"
        self._staged = None
        self.feed = Feed.AWAITING
        self._asked_s = now_s
        if self.suspicious is not None:
            self._force_snapshot = True  # only the whole tree can clear it
        pin = self.pin if self.pin is not None else Pin()
        if self._wants_snapshot:
            return Subscribe(b"", 0, pin.revision, pin.snapshot)
        return Subscribe(self.tree.catalog_id, self.tree.revision, pin.revision, pin.snapshot)

    def disconnected(self) -> None:
        """The stream ended. A partial snapshot is dropped; the tree stays."""
        if self._work is None:
            self._staged = None
        self.feed = Feed.BROKEN

    def receive(self, message: FeedMessage, now_s: float) -> Outcome:
        """Take the next message of the stream. Raises ProtocolError for what no hub may say."""
        assert self._work is None, "proceed() first: a snapshot is being applied"
        if not isinstance(message, SnapshotPage):
            self._hear_of_holding(message, now_s)
        if self.pin_reached:
            return Outcome()
        if isinstance(message, SnapshotPage):
            return self._page(message, now_s)
        if self.feed is Feed.STAGING and isinstance(message, Changes):
            return self._resync("changes came inside a snapshot", now_s)
        if self.suspicious is not None and self.feed is Feed.FOLLOWING:
            return self._while_suspicious(message, now_s)
        if self.feed is Feed.FOLLOWING or (self.feed is Feed.AWAITING and not self._wants_snapshot):
            return self._changes(message, now_s) if isinstance(message, Changes) else self._heartbeat(message, now_s)
        return self._overdue(now_s)

    def proceed(self, now_s: float) -> Outcome:
        """The next step of applying a snapshot."""
        if self._work is None:
            return Outcome()
        outcome = next(self._work)
        if not outcome.more:
            self._work = None
            if outcome.rewrite and self.suspicious is None:
                self._heard_s = now_s
        return outcome

    def accept(self, now_s: float) -> Outcome:
        """Somebody says the loss is real: apply what was held back. Does nothing when nothing is held."""
        held = self._held
        if self.suspicious is None or held is None or self._work is not None:
            return Outcome()
        log.warning("loss of names accepted", seen=str(self.suspicious))
        self._trust(now_s)
        self._staged = None
        if isinstance(held, StagedSnapshot):
            self._work = self._apply_snapshot(held, resubscribe=self._missed or self.feed is not Feed.FOLLOWING)
            return self.proceed(now_s)
        self._force_snapshot = False
        outcome = self._apply_changes(held, now_s)
        # The snapshot asked for when the batch was held back is not needed any more: follow from where we are now.
        self.feed = Feed.BROKEN
        outcome.resubscribe = True
        return outcome

    # --- changes and heartbeats --------------------------------------------------------------------------

    def _changes(self, message: Changes, now_s: float) -> Outcome:
        tree = self.tree
        if message.catalog_id != tree.catalog_id and (not message.former_id or message.former_id != tree.catalog_id):
            return self._resync("the hub's change log is another one", now_s, force_snapshot=True)
        if message.after_revision != tree.revision:
            if self.feed is Feed.AWAITING:
                return self._overdue(now_s)  # from before we asked; if not, asking again will tell
            return self._resync(
                f"changes after revision {message.after_revision} do not follow revision {tree.revision}", now_s
            )
        self.feed = Feed.FOLLOWING
        self._move_window(now_s)
        if self.pin is not None:
            pass  # who names a revision has asked for what it holds
        elif could_lose_much(tree, message.changes, self._window_lost):
            lost = forecast(tree, message.changes)
            entries = tree.entry_count + self._window_lost
            if is_suspicious(entries, lost + self._window_lost):
                before = self._window_lost
                self._suspect(
                    Suspicion(entries, lost + before, message.to_revision, message.catalog_id, now_s, before), message
                )
                return self._resync("the whole tree will show whether the names are lost", now_s, force_snapshot=True)
            self._window_lost += lost
        else:
            removals = sum(1 for change in message.changes if change.entry is None)
            self._window_lost += max(0, removals - (len(message.changes) - removals))
        return self._apply_changes(message, now_s)

    def _apply_changes(self, message: Changes, now_s: float) -> Outcome:
        tree, outcome = self.tree, Outcome()
        try:
            for change in message.changes:
                if not message.after_revision < change.revision <= message.to_revision:
                    raise SequenceBroken(f"a change of revision {change.revision} is outside its batch")
                outcome.invalidations += tree.apply(change)
        except (SequenceBroken, ValueError) as error:
            failed = self._resync(f"a change does not fit: {error}", now_s, force_snapshot=True)
            failed.invalidations = outcome.invalidations  # what was applied before it stays: it came in order
            return failed
        tree.revision = message.to_revision
        self.head_revision = max(self.head_revision, message.to_revision)
        self._heard_s = now_s
        if message.catalog_id == tree.catalog_id:
            outcome.journal = message
        else:
            tree.catalog_id = message.catalog_id
            outcome.rewrite = True  # a journal is of one catalog
        return outcome

    def _hear_of_holding(self, message: Changes | Heartbeat, now_s: float) -> None:
        if isinstance(message, Heartbeat) and message.held:
            if self.catalog_held is None:
                log.warning("the hub holds its names as they were", reason=message.held, for_s=message.held_ms / 1000)
            self.catalog_held = CatalogHeld(message.held, now_s - message.held_ms / 1000)
        elif self.catalog_held is not None and (isinstance(message, Heartbeat) or message.changes):
            log.info("the hub looks at its directory again")
            self.catalog_held = None

    def _heartbeat(self, message: Heartbeat, now_s: float) -> Outcome:
        if message.catalog_id != self.tree.catalog_id:
            return self._resync("the hub's change log is another one", now_s, force_snapshot=True)
        if message.head_revision < self.tree.revision:
            return self._resync(
                f"the hub is at revision {message.head_revision}, before ours, {self.tree.revision}",
                now_s,
                force_snapshot=True,
            )
        self.head_revision = message.head_revision
        if self.pin is not None and message.head_revision == self.tree.revision:
            self.pin_reached = True
            log.info("pinned", pin=str(self.pin), revision=self.tree.revision, entries=self.tree.entry_count)
        if self.feed is Feed.AWAITING and message.head_revision > self.tree.revision:
            return self._overdue(now_s)  # the changes are still to come
        self.feed = Feed.FOLLOWING
        self._heard_s = now_s if self.catalog_held is None else self.catalog_held.since_s
        return Outcome(self._set_root_mtime(message.root_mtime_ns))

    def _set_root_mtime(self, mtime_ns: int | None) -> list[Invalidation]:
        root = self.tree.root.entry
        if mtime_ns is None or mtime_ns == root.mtime_ns:
            return []
        return self.tree.upsert(b"", replace(root, mtime_ns=mtime_ns))

    def _overdue(self, now_s: float) -> Outcome:
        """A message that says nothing to us now. If that goes on for too long, ask again, for everything."""
        if self.feed is Feed.AWAITING and now_s - self._asked_s > limits.RESYNC_ANSWER_TIMEOUT_S:
            return self._resync("no answer that fits", now_s, force_snapshot=True)
        return Outcome()

    def _resync(self, reason: str, now_s: float, *, force_snapshot: bool = False) -> Outcome:
        log.warning("names must be synchronised anew", reason=reason, revision=self.tree.revision)
        self._force_snapshot = self._force_snapshot or force_snapshot
        self.resyncs_total += 1
        self._staged = None
        self.feed = Feed.BROKEN
        self._asked_s = now_s
        return Outcome(resubscribe=True)

    # --- snapshots ---------------------------------------------------------------------------------------

    def _page(self, page: SnapshotPage, now_s: float) -> Outcome:
        if self.feed is Feed.BROKEN:
            return Outcome()
        if len(page.catalog_id) == 0:
            raise ProtocolError("a snapshot without a catalog id")
        staged = self._staged
        try:
            if staged is None or not staged.belongs(page):
                staged = self._staged = StagedSnapshot(self.tree, page)
            self.feed = Feed.STAGING
            staged.add(page)
        except SequenceBroken as error:
            return self._resync(f"a snapshot does not fit together: {error}", now_s, force_snapshot=True)
        if not page.last:
            return Outcome()
        self._staged = None
        self.feed = Feed.FOLLOWING
        self._force_snapshot = False
        self.head_revision = page.revision
        self._work = self._judge(staged, now_s)
        return self.proceed(now_s)

    def _judge(self, staged: StagedSnapshot, now_s: float) -> Iterator[Outcome]:
        for _ in staged.sweep():
            yield Outcome(more=True)
        self._move_window(now_s)
        before = self._window_lost  # what went in small steps counts: else the rest alone would look like little
        entries, lost = self.tree.entry_count + before, staged.lost_entries + before
        if self.pin is None and staged.lost_entries and is_suspicious(entries, lost):
            self._suspect(Suspicion(entries, lost, staged.revision, staged.catalog_id, now_s, before), staged)
            yield Outcome()
            return
        if self.suspicious is not None:
            log.info("the hub shows the names again, they are believed", was=str(self.suspicious))
            self._trust(now_s)
            self._missed = False
        self._window_lost += staged.lost_entries
        yield from self._apply_snapshot(staged)

    def _apply_snapshot(self, staged: StagedSnapshot, resubscribe: bool = False) -> Iterator[Outcome]:
        for invalidations in staged.apply():
            done = self.tree.epoch % 2 == 0
            if done and resubscribe:
                self.feed = Feed.BROKEN
            yield Outcome(invalidations, rewrite=done, resubscribe=done and resubscribe, more=not done)

    # --- a hub that seems to have lost its data ----------------------------------------------------------

    @property
    def can_accept(self) -> bool:
        """What is held back is at hand: after a restart only once the hub has said it again."""
        return self.suspicious is not None and self._held is not None and self._work is None

    def losses(self, losses: Losses, present_bytes: Callable[[bytes, int], int]) -> Iterator[None]:
        """Count into ``losses``, in steps, what ``accept`` would lose. While ``can_accept`` the tree does not change."""
        held = self._held
        if isinstance(held, StagedSnapshot):
            yield from losses.add(held.gone(), held.came_versions(), present_bytes)
        elif held is not None:
            gone, came = gone_and_come(self.tree, held.changes)
            nodes = sorted(gone, key=lambda node: node.path())
            yield from losses.add(nodes, {entry.version for entry in came if entry.kind is Kind.FILE}, present_bytes)

    def _move_window(self, now_s: float) -> None:
        """While the hub is suspicious the window stands still: time alone makes no loss believable."""
        if self.suspicious is None and now_s - self._window_start_s > limits.SUSPICIOUS_WINDOW_S:
            self._window_start_s, self._window_lost = now_s, 0

    def _suspect(self, suspicion: Suspicion, held: StagedSnapshot | Changes) -> None:
        if self.suspicious is None:
            log.error("hub suspicious: the old names are kept until the hub shows them again or the loss is accepted",
                      seen=str(suspicion))  # fmt: skip
        self.suspicious = suspicion
        self._held = held
        self._missed = False
        self._recheck_at_s = suspicion.since_s + self._recheck_after_s
        self._recheck_after_s = min(2 * self._recheck_after_s, limits.SUSPICIOUS_RECHECK_MAX_S)

    def _trust(self, now_s: float) -> None:
        self.suspicious = None
        self._held = None
        self._recheck_after_s = limits.SUSPICIOUS_RECHECK_S
        self._window_start_s, self._window_lost = now_s, 0

    def _while_suspicious(self, message: Changes | Heartbeat, now_s: float) -> Outcome:
        """News of a tree that is not believed is not applied; when there was some, the whole tree is looked at again."""
        seen = self.suspicious
        assert seen is not None
        head = message.to_revision if isinstance(message, Changes) else message.head_revision
        if head != seen.revision or message.catalog_id != seen.catalog_id:
            self._missed = True
        if self._missed and now_s >= self._recheck_at_s:
            return self._resync("the suspicious hub has news", now_s, force_snapshot=True)
        return Outcome()
