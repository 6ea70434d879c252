"""What inotify events mean: which names to look at again, which directories to scan, and what the events prove. Pure.

A burst gathers events until they settle. It follows each name's occupant through renames seen from both sides, so
that a rename or chmod can be told from an edit (hub.versions judges). :class:`WatchMap` knows which watch is which directory.
"""

from __future__ import annotations

from inotify_simple import flags

from common import limits
from hub.export import split_path
from hub.versions import Evidence

IS_DIR = int(flags.ISDIR)
OVERFLOW = int(flags.Q_OVERFLOW)
IGNORED = int(flags.IGNORED)
ROOT_GONE = int(flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT)
_CREATE, _DELETE = int(flags.CREATE), int(flags.DELETE)
_MOVED_FROM, _MOVED_TO = int(flags.MOVED_FROM), int(flags.MOVED_TO)
NAME_EVENTS = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO
_EDIT = int(flags.MODIFY | flags.CLOSE_WRITE)
_ATTRIB = int(flags.ATTRIB)

# Not EXCL_UNLINK: a file without this name may have another one, and the write must be seen.
WATCH_MASK = (
    _CREATE
    | _DELETE
    | _MOVED_FROM
    | _MOVED_TO
    | _EDIT
    | _ATTRIB
    | int(flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR)
)


class WatchMap:
    """Watch descriptor <-> directory path. A directory that moved is forgotten until a scan finds it again under its new name."""

    def __init__(self) -> None:
        self._paths: dict[int, bytes] = {}
        self._watches: dict[bytes, int] = {}
        self._below: dict[bytes, set[bytes]] = {}
        self.detached: set[int] = set()

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: bytes) -> bool:
        return path in self._watches

    def path(self, watch: int) -> bytes | None:
        return self._paths.get(watch)

    def add(self, watch: int, path: bytes) -> None:
        """Note what the kernel answered; it answers the old number for a directory that is watched already."""
        self.detached.discard(watch)
        if self._paths.get(watch) == path:
            return
        if watch in self._paths:
            self._drop(self._paths[watch])
        if path in self._watches:
            self.detach(path)
        self._paths[watch] = path
        self._watches[path] = watch
        if path:
            self._below.setdefault(split_path(path)[0], set()).add(path)

    def detach(self, path: bytes) -> None:
        """This directory and all below it left their place; their watches, unless found again, are to be removed."""
        stack = [path]
        while stack:
            current = stack.pop()
            stack.extend(self._below.get(current, ()))
            watch = self._drop(current)
            if watch is not None:
                self.detached.add(watch)

    def ignored(self, watch: int) -> None:
        """The kernel ended this watch."""
        self.detached.discard(watch)
        path = self._paths.get(watch)
        if path is not None:
            self._drop(path)

    def _drop(self, path: bytes) -> int | None:
        watch = self._watches.pop(path, None)
        if watch is not None:
            del self._paths[watch]
        siblings = self._below.get(split_path(path)[0]) if path else None
        if siblings is not None:
            siblings.discard(path)
            if not siblings:
                del self._below[split_path(path)[0]]
        return watch


class _Occupant:
    """The file behind a name: the name it had when the burst began (None: it came during it), and whether it was edited."""

    __slots__ = ("edited", "origin")

    def __init__(self, origin: bytes | None) -> None:
        self.origin = origin
        self.edited = False


class Burst:
    """Events since ``first_s``. ``dirty``: names to look at; ``scan``: directories to scan whole; ``overfull``: rescan instead."""

    def __init__(self) -> None:
        self.dirty: set[bytes] = set()
        self.scan: set[bytes] = set()
        self.first_s: float | None = None
        self.last_s = 0.0
        self.overfull = False
        self.events = 0
        self._occupants: dict[bytes, _Occupant] = {}
        self._in_flight: dict[int, _Occupant] = {}
        self._departed: set[bytes] = set()
        self._relinked: set[bytes] = set()
        self._trusted = True

    @property
    def empty(self) -> bool:
        return self.first_s is None

    @property
    def half_moved(self) -> bool:
        """A rename has shown one side so far; the other, if it is ours to see, comes at once."""
        return bool(self._in_flight)

    def due_s(self, settle_s: float, max_delay_s: float) -> float | None:
        """When to act on it: after ``settle_s`` of quiet, at latest ``max_delay_s`` after its first event. None: nothing to do."""
        if self.first_s is None:
            return None
        return min(self.last_s + settle_s, self.first_s + max_delay_s)

    def look_at(self, path: bytes, now_s: float) -> None:
        """Look at this name, for whatever reason but an event."""
        self._touched(now_s)
        self.dirty.add(path)

    def overflow(self) -> None:
        """There was more than can be told by names: forget them, a rescan finds it all."""
        self.overfull = True
        for names in (self.dirty, self.scan, self._occupants, self._in_flight, self._departed, self._relinked):
            names.clear()

    def note(self, mask: int, path: bytes, cookie: int, now_s: float) -> None:
        """One event about the name ``path``."""
        self._touched(now_s)
        self.events += 1
        if self.overfull:
            return
        is_edit = mask & _EDIT and not mask & IS_DIR
        if is_edit and path in self._occupants:  # of most events in a burst of writes; the name is dirty since
            self._occupants[path].edited = True
            return
        self.dirty.add(path)
        if len(self.dirty) > limits.HUB_DIRTY_NAMES_MAX:
            self.overflow()
            return
        if mask & NAME_EVENTS:
            # The directory's own mtime moved with it, which no event says.
            parent = split_path(path)[0]
            if parent:
                self.dirty.add(parent)
            self._relinked.add(path)
        if mask & IS_DIR:
            self._note_directory(mask, path)
        elif is_edit:
            self._occupant(path).edited = True
        elif mask & _MOVED_FROM:
            self._in_flight[cookie] = self._occupant(path)
            self._occupants[path] = _Occupant(None)
        elif mask & _MOVED_TO:
            self._depart(self._occupant(path))
            arrived = self._in_flight.pop(cookie) if cookie in self._in_flight else _Occupant(None)
            self._occupants[path] = arrived
        elif mask & (_CREATE | _DELETE):
            self._depart(self._occupant(path))
            self._occupants[path] = _Occupant(None)
        elif mask & _ATTRIB:
            self._occupant(path)

    def evidence(self, later: Burst | None = None) -> Evidence:
        """What these events prove of names looked at before ``later``'s events were read.

        An edit among those may have come before the look; a name event among them may have changed what a name means.
        """
        departed = set(self._departed)
        trusted = self._trusted
        for occupant in self._in_flight.values():  # moved to where we do not see
            if occupant.edited:
                trusted = trusted and occupant.origin is not None
                departed.update([occupant.origin] if occupant.origin is not None else [])
        edited = {path for path, occupant in self._occupants.items() if occupant.edited}
        if later is not None:
            edited.update(path for path, occupant in later._occupants.items() if occupant.edited)
            trusted = trusted and later._trusted and not later._relinked and not later.overfull
        origins = {path: occupant.origin for path, occupant in self._occupants.items()}
        return Evidence(origins, edited, departed, set(self._relinked), trusted)

    def _touched(self, now_s: float) -> None:
        if self.first_s is None:
            self.first_s = now_s
        self.last_s = now_s

    def _note_directory(self, mask: int, path: bytes) -> None:
        if mask & (_CREATE | _MOVED_TO):
            self.scan.add(path)
        if mask & (_MOVED_FROM | _MOVED_TO):
            # Names below it changed their meaning in the midst of the burst: nothing can be followed by name.
            self._trusted = False

    def _occupant(self, path: bytes) -> _Occupant:
        occupant = self._occupants.get(path)
        if occupant is None:
            occupant = self._occupants[path] = _Occupant(path)
        return occupant

    def _depart(self, occupant: _Occupant) -> None:
        if not occupant.edited:
            return
        if occupant.origin is None:
            self._trusted = False
        else:
            self._departed.add(occupant.origin)
