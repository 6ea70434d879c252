"""How fast to send to one spoke: what its path delivers, so that the queue before the narrowest link stays short.

Pure: observations with their time go in, a rate comes out. TCP alone keeps a queue (several BBR flows about one round
trip of it, loss-based ones all the buffer there is), and every demand read waits in it. Here the sum of a spoke's
connections is looked at once a round trip: while the queue stands, what is delivered *is* what the path carries, and a
little less is sent until it has drained; while none stands, a little more is tried, and more again after each calm
round. Loss says nothing: it may be random. A queue that does not drain whatever we do is somebody else's: then TCP
competes by itself for a while.
"""

from __future__ import annotations

import math

ROUND_MIN_S = 0.1
"""A round is a round trip, but not less: acknowledgements come in lumps."""

QUEUE_MIN_S, QUEUE_MIN_NEAR_S = 0.004, 0.010
NEAR_RTT_S = 0.01
QUEUE_SHARE, QUEUE_SHARE_MAX_S = 0.08, 0.02
QUEUE_MIN_BYTES = 32 * 1024
"""The queue that is allowed to stand: this long (longer on near paths, whose time goes into waking processes), this share of
the round trip (buffers do not grow with it: at 900 ms it would be 72 ms, where a buffer of 60 ms only loses packets), or what
takes this many bytes; less is how busy machines acknowledge."""

DRAIN_MIN, DRAIN_MAX = 0.02, 0.4
"""How far below the path's rate while a queue drains."""

GROWTH_FIRST, GROWTH_MAX = 0.02, 0.25
CALM_ROUNDS = 3
"""Without a queue: so much above what was delivered; after so many rounds that our rate was what held it back, twice as much each."""

PATIENT_ROUNDS = 3
FORGET_SLOWLY, FORGET_FAST = 0.125, 0.5
"""How much a round with a queue weighs against what was believed of the path: little at first, more when the queue stays."""

RESUME_SHARE = 0.99
"""Of what the path is believed to carry: where to go on once a queue has gone."""

STANDING_ROUNDS = 10
"""A queue that stands so long while we drain it, and is still half of what it was at most, is not ours."""

YIELD_FIRST_S, YIELD_MAX_S = 5.0, 60.0
YIELD_ROUNDS = 20
"""How long TCP is left to compete (at least so many rounds), doubling each time in a row."""

RATE_MIN_BYTES_PER_S = 2e6
"""Below it TCP is left alone: with extents of 1 MiB a slower pace would be a string of pauses."""


class RateController:
    """``rate_bytes_per_s`` None: TCP decides, because no queue was seen yet, or because it competes."""

    def __init__(self) -> None:
        self.rate_bytes_per_s: float | None = None
        self.path_bytes_per_s = 0.0
        """What the path carries for this spoke, as far as it was seen."""
        self.queue_s = 0.0
        """The least queue of the last round."""
        self._round_from_s = -math.inf
        self._round_from_bytes = 0
        self._round_queue_s = math.inf
        self._round_busy = True
        self._calm_rounds = 0
        self._standing_rounds = 0
        self._standing_most_s = 0.0
        self._yield_until_s = -math.inf
        self._yield_s = YIELD_FIRST_S
        self._yields_from_s = -math.inf

    @property
    def drains(self) -> bool:
        """A queue stands that is to go."""
        return self._standing_rounds > 0

    def observe(self, now_s: float, *, delivered_bytes: int, rtt_s: float, min_rtt_s: float, busy: bool) -> None:
        """A look at all connections of the spoke, several a round trip.

        ``delivered_bytes``: acknowledged so far, ever rising; ``rtt_s``: of the packets acknowledged last, ``min_rtt_s``
        the least of long; ``busy``: there was more to send than was let go. Nothing to send teaches nothing.
        """
        queue_s = max(0.0, rtt_s - min_rtt_s)
        self._round_queue_s = min(self._round_queue_s, queue_s)
        self._round_busy = self._round_busy and busy
        elapsed_s = now_s - self._round_from_s
        if elapsed_s < max(ROUND_MIN_S, min_rtt_s):
            # TCP's start doubles every round trip: by the end of this round the buffer would be full.
            seen_bytes_per_s = (delivered_bytes - self._round_from_bytes) / max(elapsed_s, 1e-3)
            overshoots = self.rate_bytes_per_s is None and queue_s > 2 * _allowed_s(min_rtt_s, seen_bytes_per_s)
            if not overshoots or not self._round_busy or elapsed_s < max(ROUND_MIN_S, min_rtt_s) * 0.4:
                return
            self._round_queue_s = queue_s
        if elapsed_s < 4 * max(ROUND_MIN_S, min_rtt_s):  # else we were not asked for long: only begin anew
            self._end_round(now_s, (delivered_bytes - self._round_from_bytes) / elapsed_s, min_rtt_s)
        self._round_from_s, self._round_from_bytes = now_s, delivered_bytes
        self._round_queue_s, self._round_busy = math.inf, busy

    def _end_round(self, now_s: float, seen_bytes_per_s: float, min_rtt_s: float) -> None:
        self.queue_s = self._round_queue_s
        allowed_s = _allowed_s(min_rtt_s, seen_bytes_per_s)
        if seen_bytes_per_s <= 0:
            return  # silence: an outage says nothing about the rate
        if now_s < self._yield_until_s:
            self.path_bytes_per_s = max(self.path_bytes_per_s, seen_bytes_per_s)
            return
        if self.queue_s > allowed_s and self._round_busy:
            self._drain(now_s, seen_bytes_per_s, allowed_s, max(ROUND_MIN_S, min_rtt_s))
        elif self.queue_s <= allowed_s:
            self._try_more(now_s, seen_bytes_per_s)

    def _drain(self, now_s: float, seen_bytes_per_s: float, allowed_s: float, round_s: float) -> None:
        # The first queue may have been a burst before the path was full: then more is tried sooner.
        self._calm_rounds = CALM_ROUNDS + 1 if self.rate_bytes_per_s is None else 0
        self._standing_rounds += 1
        self._standing_most_s = max(self._standing_most_s, self.queue_s)
        first = self.rate_bytes_per_s is None
        if first and self._standing_rounds < 2 and self.queue_s < 2 * allowed_s:
            self.path_bytes_per_s = max(self.path_bytes_per_s, seen_bytes_per_s)
            return  # a burst that passes is not yet a full path
        if self._standing_rounds >= STANDING_ROUNDS and self.queue_s > self._standing_most_s / 2:
            self._let_tcp_compete(now_s, round_s)
            return
        # While a queue stands the path is busy all the time: this is its rate, whatever we believed. But a moment's queue
        # is also what a busy machine at either end looks like: only one that stays makes us forget what we knew.
        believed = self.path_bytes_per_s
        weight = 1.0 if first else FORGET_FAST if self._standing_rounds > PATIENT_ROUNDS else FORGET_SLOWLY
        self.path_bytes_per_s = believed + (seen_bytes_per_s - believed) * weight
        share = min(max(DRAIN_MIN, (self.queue_s - allowed_s / 2) / (1.5 * round_s)), DRAIN_MAX)
        self._use(min(self.path_bytes_per_s, max(seen_bytes_per_s, believed / 2)) * (1 - share))

    def _try_more(self, now_s: float, seen_bytes_per_s: float) -> None:
        resumes = self._standing_rounds > 0
        self._standing_rounds, self._standing_most_s = 0, 0.0
        if now_s - self._yields_from_s > 2 * YIELD_MAX_S:
            self._yield_s = YIELD_FIRST_S
        rate = self.rate_bytes_per_s
        believed = self.path_bytes_per_s
        # A lump of late acknowledgements can show more than the path has; the next rounds will tell.
        self.path_bytes_per_s = max(believed, seen_bytes_per_s if rate is None else min(seen_bytes_per_s, 1.5 * rate))
        if rate is None:
            return
        if resumes:
            self._use(max(rate, self.path_bytes_per_s * RESUME_SHARE))
            return
        if not self._round_busy or seen_bytes_per_s < 0.85 * rate:
            self._calm_rounds = 0  # something else holds us back: no reason to try more
            return
        self._calm_rounds += 1
        doublings = max(0, self._calm_rounds - CALM_ROUNDS)
        growth = min(GROWTH_FIRST * 2.0 ** min(doublings, 10), GROWTH_MAX)
        self._use(max(rate, self.path_bytes_per_s * (1 + growth)))

    def _let_tcp_compete(self, now_s: float, round_s: float) -> None:
        self._yields_from_s = now_s
        self._yield_until_s = now_s + max(self._yield_s, YIELD_ROUNDS * round_s)
        self._yield_s = min(2 * self._yield_s, YIELD_MAX_S)
        self._standing_rounds, self._standing_most_s = 0, 0.0
        self.rate_bytes_per_s = None

    def _use(self, rate_bytes_per_s: float) -> None:
        self.rate_bytes_per_s = max(rate_bytes_per_s, RATE_MIN_BYTES_PER_S)


def _allowed_s(min_rtt_s: float, seen_bytes_per_s: float) -> float:
    least_s = QUEUE_MIN_S if min_rtt_s >= NEAR_RTT_S else QUEUE_MIN_NEAR_S
    return max(least_s, min(QUEUE_SHARE * min_rtt_s, QUEUE_SHARE_MAX_S), QUEUE_MIN_BYTES / max(seen_bytes_per_s, 1.0))
