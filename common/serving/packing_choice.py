"""Whether what goes over one path is worth compressing: pure, observations with their time go in, yes or no comes out.

Packing trades CPU time for time on the path, so it pays where the path is what is slow. A rate alone does not tell: over loopback
the CPUs set it, and packing lowers it further, so each answer would prove itself right. Therefore a path is judged by its
rate *without* packing, and from then on by comparison: while packing, everything is sent raw for a moment now and then,
and what was delivered in file bytes before must beat what is delivered then. What lost is not tried again for a while.

Before anything was measured a far path counts as slow: its first round trips gain most. A near one gets a little packed, then raw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

FAR_RTT_S, FAR_ANSWER_S = 0.01, 0.03
"""From here on a path is far, by TCP's least round trip, or by what a PING takes (TCP may end at a proxy; but less is also how
a busy machine answers). Nearer paths are mostly as fast as the machines."""

NEAR_FIRST_BYTES = 2 * 1024 * 1024
"""Packed on a near path before its rate is known: 7 ms of CPU at both ends, and most of what a small file has."""

ASSUMED_COST_S_PER_BYTE = 2.5e-9
"""CPU time to pack, before any was measured: zstd level 1 does some 400 MB/s a core."""

UNPACK_TO_PACK = 0.4
"""What unpacking costs beside packing: 1 GB/s where packing does 400 MB/s."""

ASSUMED_RATIO = 0.5
"""Packed bytes over raw bytes, of data not seen yet."""

SERIAL_MARGIN, PARALLEL_MARGIN = 0.7, 0.9
"""Packing must take no more than this part of the time it saves (near), or of the time that raw bytes need (far)."""

WINDOW_S = 0.1
"""A rate is measured over at least so long, and a round trip: looks are 50 ms apart, acknowledgements come in lumps."""

SETTLE_S = 0.05
"""After a change, and a round trip: what was prepared before has left by then."""

TRIAL_S, FAR_TRIAL_S = 0.3, 2.0
"""Time at work until packing is first compared with raw; a far path takes some of it to come up to its rate."""

START_ROUND_TRIPS = 12
"""A far path comes up to its rate within so many; what packing brings is measured after them, and anew after each pause: a file of
0.8 s read again and again looked slow packed, and went raw for 10 s at 60 ms and 1 Gbit/s."""

LONG_RTT_S = 0.06
"""From here on times between comparisons grow with the round trip, as each takes two of them."""

COMPARE_MAX_S = 60.0
"""Time at work between two comparisons: doubled each time packing has won, up to here. Half a second raw a minute costs 1 % at most."""

COMPARE_MIN_BYTES = 4 * 1024 * 1024
"""Moved in the moment that decides, unless it takes two windows: extents come whole."""

COMPARE_PATIENCE_S = 1.0
"""A comparison that finds too little to send is given up after so long."""

WIN_NEAR, WIN_FAR = 1.05, 0.75
"""File bytes with packing over those without, from which packing goes on. A far path's round trips make its rates uneven, and there
bytes are worth more than the CPU time: packing has to lose clearly."""

HOLD_OFF_FIRST_S, HOLD_OFF_MAX_S = 10.0, 600.0
"""After packing has lost, doubled each time: what a trial costs stays below 3 %."""

SLOWER = 0.6
"""A path that falls below this part of the rate at which packing lost is another path."""

FASTER = 1.2
"""A path that carries so many times its known rate although everything is packed is another path: compared at once."""

SHRUNK = 0.95
"""Packed over raw bytes of a window above which nothing was gained: it shows what raw bytes do."""


class Mode(Enum):
    RAW = "raw"
    PACKING = "packing"
    COMPARING = "comparing"
    """Raw for a moment, to see what packing brings."""


@dataclass(frozen=True, slots=True)
class PackingCost:
    """CPU seconds to pack a byte, and how many cores may do it at once."""

    s_per_byte: float = ASSUMED_COST_S_PER_BYTE
    cores: int = 1


def pays(raw_bytes_per_s: float, ratio: float, cost: PackingCost, *, path_is_limit: bool) -> bool:
    """Whether bytes that would go at this rate raw are better packed to ``ratio`` of their size.

    ``path_is_limit``: then packing happens beside sending, and only must keep up. Otherwise the rate may be the machines' own: each byte's
    packing and unpacking is taken from it.
    """
    if raw_bytes_per_s <= 0 or ratio >= 1:
        return raw_bytes_per_s <= 0
    raw_s = 1 / raw_bytes_per_s
    if path_is_limit:
        return max(ratio * raw_s, cost.s_per_byte / max(1, cost.cores)) < PARALLEL_MARGIN * raw_s
    return cost.s_per_byte * (1 + UNPACK_TO_PACK) < SERIAL_MARGIN * (1 - ratio) * raw_s


class PackingChoice:
    """One path's. ``mode`` and the rates are for logs and tests."""

    def __init__(self, *, far: bool) -> None:
        self.far = far
        self.mode = Mode.PACKING if far else Mode.RAW
        self.raw_bytes_per_s: float | None = None
        """File bytes delivered while nothing was packed, when it was last seen."""
        self.packing_bytes_per_s: float | None = None
        """File bytes delivered while packing."""
        self.cost = PackingCost()
        self._full = False
        self._first_bytes = 0 if far else NEAR_FIRST_BYTES
        self._window_from_s = -math.inf
        self._window_moved_bytes = 0
        self._window_busy = False
        self._window_raw_bytes = 0
        self._window_payload_bytes = 0
        self._settled_s = -math.inf
        self._steady_from_s = -math.inf
        self._ratio = ASSUMED_RATIO
        self._compare_every_s = FAR_TRIAL_S if far else TRIAL_S
        self._worked_s = 0.0
        self._worked_bytes = 0.0
        self._hold_off_s = HOLD_OFF_FIRST_S
        self._held_until_s = -math.inf
        self._lost_at_bytes_per_s: float | None = None

    def wants(self, raw_bytes: int, ratio: float | None) -> bool:
        """Whether to pack an extent of this size. ``ratio``: what packing made of its version lately, None when it was not tried."""
        if self.mode is Mode.PACKING:
            known = self.raw_bytes_per_s
            return known is None or ratio is None or self._pays(known, ratio)
        if self.mode is Mode.COMPARING or self.raw_bytes_per_s is not None or self._first_bytes <= 0:
            return False
        self._first_bytes -= raw_bytes
        return True

    def prepared(self, raw_bytes: int, payload_bytes: int, cost: PackingCost) -> None:
        """An extent is ready to go, packed or not. ``cost``: as known by now."""
        self.cost = cost
        self._window_raw_bytes += raw_bytes
        self._window_payload_bytes += payload_bytes
        if payload_bytes < raw_bytes:
            self._ratio += (payload_bytes / raw_bytes - self._ratio) / 8

    def idle(self, now_s: float) -> None:
        """Nothing waits for the path: a comparison that finds no end is made another time."""
        if self.mode is Mode.COMPARING and now_s > self._settled_s + COMPARE_PATIENCE_S:
            self._use(Mode.PACKING, now_s, 0.0)

    def observe(self, now_s: float, *, moved_bytes: int, rtt_s: float, busy: bool, full: bool) -> None:
        """A look at all connections of the path, several a window while something waits.

        ``moved_bytes``: acknowledged since the last look; ``busy``: more waits than was let go; ``full``: a queue was seen in
        front of the path's narrowest link, which no slow end makes.
        """
        self._full = full
        elapsed_s = now_s - self._window_from_s
        window_s = max(WINDOW_S, rtt_s)
        if elapsed_s > 4 * window_s:
            self._starts(now_s, rtt_s)
        if now_s < self._settled_s or elapsed_s > 4 * window_s:
            self._begin_window(now_s, busy)
            return
        self._window_moved_bytes += moved_bytes
        self._window_busy = self._window_busy and busy
        lumpy = (
            self.mode is Mode.COMPARING and self._window_moved_bytes < COMPARE_MIN_BYTES and elapsed_s < 2 * window_s
        )
        if elapsed_s < window_s or lumpy:
            return
        rate = self._window_moved_bytes / elapsed_s
        gain = self._window_raw_bytes / max(1, self._window_payload_bytes)
        was_busy = self._window_busy
        self._begin_window(now_s, busy)
        if not was_busy:
            self._starts(now_s, rtt_s)
        if rate <= 0 or gain <= 0:
            return
        packed = gain * SHRUNK >= 1
        if self.mode is Mode.COMPARING:
            if not packed:  # else what was packed before is still leaving
                self._compare(now_s, rate, rtt_s, was_busy)
        elif was_busy and packed:
            self._saw_packed(now_s, elapsed_s, rate, rate * gain, rtt_s)
        elif was_busy:
            self._saw_raw(now_s, rate, rtt_s)

    def _begin_window(self, now_s: float, busy: bool) -> None:
        self._window_from_s, self._window_busy = now_s, busy
        self._window_moved_bytes = self._window_raw_bytes = self._window_payload_bytes = 0

    def _starts(self, now_s: float, rtt_s: float) -> None:
        """What comes next begins after a pause, or less was asked for than the path carries."""
        if self.far:
            self._steady_from_s = now_s + START_ROUND_TRIPS * rtt_s
            self._worked_s = self._worked_bytes = 0.0

    def _saw_raw(self, now_s: float, rate: float, rtt_s: float) -> None:
        """Whatever was tried: data that does not shrink shows what raw bytes do, too."""
        known = self.raw_bytes_per_s
        self.raw_bytes_per_s = rate if known is None else known + (rate - known) / 2
        if self.mode is Mode.RAW:
            self._consider(now_s, rtt_s)
        elif not self._pays(self.raw_bytes_per_s, self._ratio):
            self._use(Mode.RAW, now_s, rtt_s)

    def _saw_packed(self, now_s: float, elapsed_s: float, rate: float, file_rate: float, rtt_s: float) -> None:
        if self.mode is not Mode.PACKING or now_s < self._steady_from_s:
            return  # the rest of what was packed before; or it comes up to its rate
        raw = self.raw_bytes_per_s
        self._worked_s += elapsed_s
        self._worked_bytes += file_rate * elapsed_s
        self.packing_bytes_per_s = self._worked_bytes / self._worked_s
        faster = raw is not None and rate > FASTER * raw  # it carries at least what is seen
        due_s = self._compare_every_s * max(1.0, rtt_s / LONG_RTT_S)
        if faster or self._worked_s >= due_s:
            self._use(Mode.COMPARING, now_s, rtt_s)

    def _compare(self, now_s: float, rate: float, rtt_s: float, was_busy: bool) -> None:
        wins = (self.packing_bytes_per_s or 0.0) >= rate * (WIN_FAR if self.far else WIN_NEAR)
        # Bytes over a long way cost money, too: it goes raw where packing cannot keep up, not where the CPUs have other work.
        wins = wins or (self.far and self._pays(rate, self._ratio))
        if wins and not was_busy:
            self.idle(now_s)  # nobody asked for more: no answer
            return
        self.raw_bytes_per_s = rate
        self._worked_s = self._worked_bytes = 0.0
        if wins:
            self._compare_every_s = min(2 * self._compare_every_s, COMPARE_MAX_S)
            self._hold_off_s = HOLD_OFF_FIRST_S
            self._use(Mode.PACKING, now_s, rtt_s)
            return
        # Also when raw bytes leave nothing waiting: then something else is what is slow.
        self._lost_at_bytes_per_s = rate
        self._held_until_s = now_s + self._hold_off_s
        self._hold_off_s = min(2 * self._hold_off_s, HOLD_OFF_MAX_S)
        self._use(Mode.RAW, now_s, rtt_s)

    def _consider(self, now_s: float, rtt_s: float) -> None:
        """Raw so far: does packing look better?"""
        assert self.raw_bytes_per_s is not None
        lost_at = self._lost_at_bytes_per_s
        held = now_s < self._held_until_s and (lost_at is None or self.raw_bytes_per_s > SLOWER * lost_at)
        if not held and self._pays(self.raw_bytes_per_s, self._ratio):
            self._compare_every_s = FAR_TRIAL_S if self.far else TRIAL_S
            self._worked_s = self._worked_bytes = 0.0
            self.packing_bytes_per_s = None
            self._use(Mode.PACKING, now_s, rtt_s)

    def _pays(self, raw_bytes_per_s: float, ratio: float) -> bool:
        return pays(raw_bytes_per_s, ratio, self.cost, path_is_limit=self.far or self._full)

    def _use(self, mode: Mode, now_s: float, rtt_s: float) -> None:
        self.mode = mode
        self._settled_s = now_s + SETTLE_S + rtt_s
