"""The right answer: what every path held when, and which answers of a mount that allows. Pure: times come in.

A *state* is all the bytes of a file between two edits. What must hold is one sentence in :data:`INVARIANTS` each; the run
names them when they do not.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

INVARIANTS = {
    "bytes": "A read gives the bytes of one state of the file, all that were asked for up to its size.",
    "one version": "All that is ever read of one version, by any spoke, is of one and the same state.",
    "errors": "A read fails only with EIO while something is broken, or with ESTALE once its version is gone at the hub.",
    "fresh": "While nothing is broken an open finds what the path was at most two seconds and two round trips ago.",
    "ends": "Every read, open and lookup ends: in the read timeout and a little.",
    "converges": "Once nothing is broken any more every spoke comes to show the hub's directory, name by name and byte by byte.",
    "returns": "Then nothing is held for readers that have gone: no waits, no flights, no handles, no requests at the hub.",
    "quota": "What a cache takes of its disk stays within its size.",
    "ends in order": "Spokes and hub that are told to stop end soon, and leave no task and no open file behind.",
    "quiet": "Nothing dies of an error that nobody foresaw.",
}


class Broken(Exception):
    """An invariant does not hold; ``name`` is a key of INVARIANTS."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"[{name}] {what}")
        self.name = name


@dataclass(frozen=True, slots=True, eq=False)
class State:
    number: int
    content: bytes


@dataclass(slots=True)
class Span:
    """A path held ``state`` from ``from_s`` to ``to_s`` (None: it still does)."""

    state: State
    from_s: float
    to_s: float | None = None


@dataclass(slots=True)
class Troubles:
    """Since when nothing is broken, and until when something was. ``last_s``: the end of the last trouble."""

    under_way: int = 0
    last_s: float = float("-inf")

    def begin(self) -> None:
        self.under_way += 1

    def end(self, now_s: float) -> None:
        self.under_way -= 1
        self.last_s = now_s

    def may_have_hurt(self, began_s: float, grace_s: float) -> bool:
        """Whether something was broken at or after ``began_s``, or so shortly before that it still shows."""
        return self.under_way > 0 or self.last_s + grace_s >= began_s


class Truth:
    """``hold`` and ``drop`` as the dataset changes; ``read`` with each answer."""

    def __init__(self) -> None:
        self._spans: dict[bytes, list[Span]] = {}
        self._of_version: dict[bytes, list[State]] = {}
        self.reads = 0
        self.bytes = 0

    # --- what the dataset is --------------------------------------------------------------------------------

    def hold(self, path: bytes, state: State, now_s: float) -> None:
        """From now on ``path`` is a file of this state."""
        self.drop(path, now_s)
        self._spans.setdefault(path, []).append(Span(state, now_s))

    def drop(self, path: bytes, now_s: float) -> None:
        """From now on there is no such file."""
        spans = self._spans.get(path)
        if spans and spans[-1].to_s is None:
            spans[-1].to_s = now_s

    def current(self, path: bytes) -> State | None:
        spans = self._spans.get(path)
        return spans[-1].state if spans and spans[-1].to_s is None else None

    def files(self) -> list[bytes]:
        """Paths that are files now, in the order in which they first were."""
        return [path for path in self._spans if self.current(path) is not None]

    def are_held(self, states: Iterable[State]) -> bool:
        """Whether each of these states is some file's now."""
        held = {spans[-1].state.number for spans in self._spans.values() if spans[-1].to_s is None}
        return all(state.number in held for state in states)

    # --- what a mount answered ------------------------------------------------------------------------------

    def states_of(self, version: bytes, path: bytes, size_bytes: int) -> Sequence[State]:
        """Which states a version may be."""
        known = self._of_version.get(version)
        if known is not None:
            return known
        ever = {span.state.number: span.state for span in self._spans.get(path, ())}
        return [state for state in ever.values() if len(state.content) == size_bytes]

    def read(
        self, version: bytes, path: bytes, size_bytes: int, offset_bytes: int, length_bytes: int, data: bytes
    ) -> None:
        """An answer of bytes. Raises Broken."""
        expected_bytes = max(0, min(length_bytes, size_bytes - offset_bytes))
        where = f"{path!r}, version {version.hex()[:8]} of {size_bytes} bytes, {length_bytes} at {offset_bytes}"
        if len(data) != expected_bytes:
            raise Broken("bytes", f"{len(data)} bytes instead of {expected_bytes}: {where}")
        states = self.states_of(version, path, size_bytes)
        fit = [state for state in states if state.content[offset_bytes : offset_bytes + expected_bytes] == data]
        if not fit:
            name = "one version" if version in self._of_version else "bytes"
            raise Broken(name, f"{where}: {self._explained(data, offset_bytes, states)}")
        self._of_version[version] = fit
        self.reads += 1
        self.bytes += len(data)

    def judge_age(self, version: bytes, path: bytes, size_bytes: int, opened_s: float, age_s: float) -> None:
        """The version that an open found at ``opened_s``, with nothing broken. Raises Broken."""
        # By content: a mode that is changed makes no other version.
        possible = {id(state.content) for state in self.states_of(version, path, size_bytes)}
        spans = [span for span in self._spans.get(path, ()) if id(span.state.content) in possible]
        if spans and all(span.to_s is not None and span.to_s < opened_s - age_s for span in spans):
            ended_s = max(span.to_s or 0.0 for span in spans)
            raise Broken("fresh", f"an open found {path!r} as it was until {opened_s - ended_s:.1f} s before")

    def judge_absence(self, path: bytes, opened_s: float, age_s: float) -> None:
        """An open at ``opened_s`` that found no such name, with nothing broken. Raises Broken."""
        spans = self._spans.get(path)
        if spans and spans[-1].to_s is None and spans[-1].from_s < opened_s - age_s:
            raise Broken("fresh", f"{path!r} is not found {opened_s - spans[-1].from_s:.1f} s after it came")

    def _explained(self, data: bytes, offset_bytes: int, states: Sequence[State]) -> str:
        """For people: how the bytes differ from what was expected, and where else they are from."""
        for state in states:
            wanted = state.content[offset_bytes : offset_bytes + len(data)]
            first = next((at for at, (one, other) in enumerate(zip(data, wanted, strict=False)) if one != other), 0)
            bad = sum(one != other for one, other in zip(data, wanted, strict=False))
            found = data[first : first + 16]
            others = [
                f"state {span.state.number} of {path!r}"
                for path, spans in self._spans.items()
                for span in spans
                if any(found) and found in span.state.content
            ]
            return (
                f"{bad} bytes differ from state {state.number}, the first at {offset_bytes + first}, where"
                f" {found.hex()} stands ({', '.join(others[:3]) or 'of no state'})"
            )
        return "no state of this path has this size"

    def judge_error(
        self,
        code: int,
        version: bytes,
        path: bytes,
        size_bytes: int,
        *,
        began_s: float,
        troubles: Troubles,
        grace_s: float,
    ) -> None:
        """An answer that is an errno. Raises Broken."""
        if code == errno.ESTALE:
            states = self.states_of(version, path, size_bytes)
            if self.are_held(states) and not troubles.may_have_hurt(began_s, grace_s):
                raise Broken("errors", f"ESTALE for {path!r}, which is what it was (version {version.hex()[:8]})")
            return
        if code != errno.EIO:
            raise Broken("errors", f"{errno.errorcode.get(code, code)} for a read of {path!r}")
        if not troubles.may_have_hurt(began_s, grace_s):
            raise Broken("errors", f"EIO for {path!r} at a time when nothing was broken")
