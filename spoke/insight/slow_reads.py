"""Why a read waited: its time cut into parts, and the causes that follow. Pure; the last few hundred are kept.

A read waits for the last of its fetches. That one was asked for (by this read or ahead of it), sent once a connection had
room, came after at least a round trip, perhaps after another try, and was then handed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from spoke.insight.history import GONE, Note, What
from spoke.insight.stalls import in_time, text_of

_QUEUE_MIN_S = 0.005
_SHARE = 0.25
"""A part of the wait below this is no cause."""
_SLOW_TRIPS = 2.0
"""Round trips from sending to arrival above which the link, or the hub, was slow and not only far."""


class Fetch(NamedTuple):
    """The fetch that ended last. Seconds of the daemon's clock; ``sent_s`` and ``landed_s`` 0: it never was.

    ``tries``: times asked for; ``sends``: times it went out on a connection.
    """

    asked_s: float
    sent_s: float
    landed_s: float
    ahead: bool
    tries: int
    sends: int
    first_block: int


class SlowRead(NamedTuple):
    """One read that waited. ``before``: what was noted of its extent before it came. ``rtt_s`` None: not measured then."""

    path: bytes
    version: bytes
    offset_bytes: int
    length_bytes: int
    task_id: int
    began_s: float
    ended_s: float
    result: Literal["late", "miss"]
    rtt_s: float | None
    hub_linked: bool
    fetch: Fetch | None
    before: tuple[Note, ...]
    error: str = ""

    @property
    def waited_s(self) -> float:
        return self.ended_s - self.began_s


def parts(slow: SlowRead) -> dict[str, float]:
    """Seconds of its wait: ``queue_s`` until the request went out, ``travel_s`` until the bytes came, ``after_s`` until they were given."""
    fetch = slow.fetch
    if fetch is None:
        return {"queue_s": 0.0, "travel_s": slow.waited_s, "after_s": 0.0}
    sent_s = min(max(fetch.sent_s or slow.ended_s, slow.began_s), slow.ended_s)
    landed_s = min(max(fetch.landed_s or slow.ended_s, sent_s), slow.ended_s)
    return {"queue_s": sent_s - slow.began_s, "travel_s": landed_s - sent_s, "after_s": slow.ended_s - landed_s}


def causes(slow: SlowRead) -> list[str]:
    """Words for programs, the root first: never-fetched, evicted, outdated, dropped or late-prefetch; then no-link, retry, queue,
    slow-link or rtt, error."""
    found: list[str] = []
    fetch, cut = slow.fetch, parts(slow)
    if fetch is not None and fetch.ahead:
        found.append("late-prefetch")
    else:
        gone = next((note for note in reversed(slow.before) if note.what in GONE), None)
        found.append("never-fetched" if gone is None else gone.what.name.lower())
    if not slow.hub_linked:
        found.append("no-link")
    if fetch is not None and (fetch.tries > 1 or fetch.sends > 1):
        found.append("retry")
    if cut["queue_s"] > max(_QUEUE_MIN_S, _SHARE * slow.waited_s):
        found.append("queue")
    if fetch is not None and fetch.landed_s and slow.rtt_s is not None:
        travelled_s = fetch.landed_s - (fetch.sent_s or fetch.asked_s)
        if travelled_s > _SLOW_TRIPS * slow.rtt_s + _QUEUE_MIN_S:
            found.append("slow-link")
        elif cut["travel_s"] >= _SHARE * slow.waited_s:
            found.append("rtt")
    if slow.error:
        found.append("error")
    return found


def in_words(slow: SlowRead, now_s: float, name_of: dict[bytes, str], history_whom: dict[int, bytes]) -> str:
    """One sentence: what it waited for and why. ``name_of``: paths of versions that are named in it."""
    fetch, cut = slow.fetch, parts(slow)
    reasons = causes(slow)
    text = f"waited {in_time(slow.waited_s)}, {in_time(now_s - slow.ended_s)} ago: "
    text += _root_in_words(slow, now_s, name_of, history_whom)
    if "no-link" in reasons:
        text += "; no link to the hub was up"
    if "retry" in reasons and fetch is not None:
        text += f"; it was asked for {max(fetch.tries, fetch.sends)} times"
    if "queue" in reasons:
        text += f"; {in_time(cut['queue_s'])} until a connection had room for the request"
    if fetch is not None and fetch.landed_s:
        travelled_s = fetch.landed_s - (fetch.sent_s or fetch.asked_s)
        trip = f" (round trip {slow.rtt_s * 1000:.3g} ms)" if slow.rtt_s is not None else ""
        slowly = ", slower than the distance: the link or the hub was busy" if "slow-link" in reasons else ""
        text += f"; {in_time(travelled_s)} from the request to the bytes{trip}{slowly}"
    if cut["after_s"] > max(_QUEUE_MIN_S, _SHARE * slow.waited_s):
        text += f"; {in_time(cut['after_s'])} more to hand it over"
    return text + (f"; it failed: {slow.error}" if slow.error else "")


def _root_in_words(slow: SlowRead, now_s: float, name_of: dict[bytes, str], whom: dict[int, bytes]) -> str:
    fetch = slow.fetch
    if fetch is not None and fetch.ahead:
        return (
            f"late prefetch, asked for {in_time(max(0.0, slow.began_s - fetch.asked_s))} before the reader came"
            if fetch.asked_s <= slow.began_s
            else "prefetch asked for it as the reader came"
        )
    gone = next((note for note in reversed(slow.before) if note.what in GONE), None)
    if gone is None:
        return "not fetched since the spoke started" + (", though other parts of its MiB were" if slow.before else "")
    return note_in_words(gone, now_s, name_of, whom)


def note_in_words(note: Note, now_s: float, name_of: dict[bytes, str], whom: dict[int, bytes]) -> str:
    """One note of the history, with its age; ``detail`` of AHEAD is the caller's to say."""
    ago = f"{in_time(max(0.0, now_s - note.at_s))} ago"
    often = f" {note.detail} times, the last" if note.detail > 1 else ""
    match note.what:
        case What.ASKED:
            return f"asked for by readers{often} {ago}"
        case What.AHEAD:
            return f"asked for ahead of readers {ago}"
        case What.JOINED:
            return f"readers came for it while it was on its way{often} {ago}"
        case What.LANDED:
            return f"arrived{f' in {note.detail} parts, the last' if often else ''} {ago}"
        case What.AGAIN:
            return f"asked for again, it had failed or came damaged,{often} {ago}"
        case What.FAILED:
            return f"the fetch failed{often} {ago}"
        case What.OUTDATED:
            return f"taken out {ago}: no name had this version any more"
        case What.DROPPED:
            return f"taken out {ago}: damaged, unreadable, or by command"
        case What.EVICTED:
            version = whom.get(note.detail)
            if not note.detail:
                return f"evicted {ago} to keep the disk's limit"
            return f"evicted {ago}" + (f" for {name_of[version]}" if version in name_of else "")


def as_facts(slow: SlowRead, now_s: float) -> dict[str, Any]:
    """For JSON; seconds and bytes."""
    fetch = slow.fetch
    return {
        "path": text_of(slow.path),
        "offset_bytes": slow.offset_bytes,
        "length_bytes": slow.length_bytes,
        "ended_ago_s": now_s - slow.ended_s,
        "waited_s": slow.waited_s,
        "result": slow.result,
        "causes": causes(slow),
        **parts(slow),
        "rtt_s": slow.rtt_s,
        "prefetch_lead_s": max(0.0, slow.began_s - fetch.asked_s) if fetch is not None and fetch.ahead else None,
        "tries": max(fetch.tries, fetch.sends) if fetch is not None else 0,
        "error": slow.error or None,
    }


def versions_named(notes: Sequence[Note], whom: dict[int, bytes]) -> Iterator[bytes]:
    """Versions that made others go, as far as they are remembered."""
    return (whom[note.detail] for note in notes if note.what is What.EVICTED and note.detail in whom)
