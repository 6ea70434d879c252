"""How fast to send to one spoke: what its path delivers, so that the queue before the narrowest link stays short.

Pure: observations with their time go in, a rate comes out. TCP alone keeps a queue (several BBR flows about one round
trip of it, loss-based ones all the buffer there is), and every demand read waits in it. Here the sum of a spoke's
connections is looked at once a round trip: while the queue stands, what is delivered *is* what the path carries, and a
little less is sent until it has drained; while none stands, a little more is tried, and more again after each calm
round that brought it. A start is held to a multiple of what it brings. Loss says nothing: it may be random. A queue that
does not drain whatever we do is somebody else's: then TCP competes by itself for a while.
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

HOLD_ROUNDS = 3
GROWTH_FIRST, GROWTH_MAX = 0.02, 0.25
CALM_ROUNDS = 6
"""Without a queue, and while our rate is what holds it back: so many rounds as it is, then all that was delivered, then so much
above it; after so many rounds twice as much each."""

PATIENT_ROUNDS = 3
FORGET_SLOWLY, FORGET_FAST = 0.125, 0.5
LUMP_SHARE = 0.8
"""How much a round with a queue weighs against what was believed of the path: all of it the first time, a half the second (a
round of a start shows up to an eighth more than there is), then little; more when the queue stays. A round that brought less than this
share of what was believed is more likely a busy machine at either end, also the first of a start: little at once, and what was known from
before is not new."""

RESUME_SHARE = 0.97
"""Of what the path is believed to carry: where to go on once a queue has gone, so that the rest of it goes too."""

KEPT_UP, KEPT_UP_QUEUE_S = 0.98, 0.0015
"""A round that brought less than this part of what was let go the round before, and in which a queue begins: the path is full, though
none stands yet. Without the queue it is a busy machine: taken for a full path, a rate that was half of it took 5 s to rise, not 2."""

SURPLUS = 1.02
"""A round is believed to have brought at most so many times what we let go: the rest are late acknowledgements of the one before."""

START_BYTES = 5e6
START_DOUBLING_ROUND_TRIPS = 2.0
START_SEEN = 1.4
START_MAX_RTT_S = 0.1
"""Before a first queue was seen: so many bytes a round trip, doubling in so many round trips, at most so many times what was
delivered. News of a full path is a round trip and a look old: a dozen connections that double by themselves each round trip send three
times what it carries by then, fill the buffer and lose packets. Not on longer paths, where it would take too long."""

START_SPAN_S = 0.05
"""What is delivered while starting is measured over so much at least: acknowledgements come in lumps."""

START_QUEUE_S = 0.003
"""Of queue: until it has gone a start is held to what it brought, since the path may be full: what goes beyond it only queues."""

START_HELD, START_HELD_QUEUE_S = 4.0, 0.006
"""Where so much of it stands from look to look, also less than START_BYTES, down to this part: a path of 300 Mbit/s has half of that."""

STANDING_ROUNDS = 10
"""A queue that stands so long while we drain it, and is still half of what it was at most, is not ours."""

YIELD_FIRST_S, YIELD_MAX_S = 5.0, 60.0
YIELD_ROUNDS = 20
"""How long TCP is left to compete (at least so many rounds), doubling each time in a row."""

RATE_MIN_BYTES_PER_S = 2e6
"""Below it TCP is left alone: with extents of 1 MiB a slower pace would be a string of pauses."""


class RateController:
    """``rate_bytes_per_s`` None: TCP decides, because no queue was seen yet, or because it competes."""

    def __init__(self, known_bytes_per_s: float = 0.0) -> None:
        """``known_bytes_per_s``: what the path carried some time ago, 0 when that is not known."""
        self.rate_bytes_per_s: float | None = known_bytes_per_s * RESUME_SHARE if known_bytes_per_s else None
        self.path_bytes_per_s = known_bytes_per_s
        """What the path carries for this spoke, as far as it was seen."""
        self.start_bytes_per_s: float | None = None
        """How fast to send while no queue was seen yet; None: TCP decides."""
        self._starting = self.rate_bytes_per_s is None
        self._looked_s = -math.inf
        self._looked_queue_s = 0.0
        self._span_from_s = -math.inf
        self._span_from_bytes = 0
        self._seen_most_bytes_per_s = 0.0
        self._queue_rounds = int(1 / FORGET_SLOWLY) if known_bytes_per_s else 0
        self._round_rate_bytes_per_s, self._rate_before_bytes_per_s = 0.0, 0.0
        """In force when this round began, and the one before it."""
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
    def pace_bytes_per_s(self) -> float | None:
        """The rate to send at, learned or of the start; None: TCP decides."""
        return self.rate_bytes_per_s if self.rate_bytes_per_s is not None else self.start_bytes_per_s

    @property
    def starts(self) -> bool:
        """No first queue was seen yet, and the start is paced."""
        return self.start_bytes_per_s is not None

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
        stood_s, self._looked_queue_s = min(queue_s, self._looked_queue_s), queue_s
        self._begin_slowly(now_s, delivered_bytes, queue_s, stood_s, min_rtt_s)
        self._round_queue_s = min(self._round_queue_s, queue_s)
        self._round_busy = self._round_busy and busy
        elapsed_s = now_s - self._round_from_s
        if elapsed_s < max(ROUND_MIN_S, min_rtt_s):
            # TCP's start doubles every round trip: by the end of this round the buffer would be full.
            seen_bytes_per_s = (delivered_bytes - self._round_from_bytes) / max(elapsed_s, 1e-3)
            # A start is looked at twice as often: one look with late acknowledgements is no queue.
            over_s = (stood_s if self.starts else queue_s) - 2 * _allowed_s(min_rtt_s, seen_bytes_per_s)
            overshoots = self.rate_bytes_per_s is None and over_s > 0
            if not overshoots or not self._round_busy or elapsed_s < max(ROUND_MIN_S, min_rtt_s) * 0.4:
                return
            self._round_queue_s = queue_s
        if elapsed_s < 4 * max(ROUND_MIN_S, min_rtt_s):  # else we were not asked for long: only begin anew
            self._end_round(now_s, (delivered_bytes - self._round_from_bytes) / elapsed_s, min_rtt_s)
        self._round_from_s, self._round_from_bytes = now_s, delivered_bytes
        self._rate_before_bytes_per_s = self._round_rate_bytes_per_s
        self._round_rate_bytes_per_s = self.rate_bytes_per_s or 0.0
        self._round_queue_s, self._round_busy = math.inf, busy

    def _begin_slowly(
        self, now_s: float, delivered_bytes: int, queue_s: float, stood_s: float, min_rtt_s: float
    ) -> None:
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        if not self._starting or not NEAR_RTT_S <= min_rtt_s <= START_MAX_RTT_S:
            self.start_bytes_per_s = None
            return
        span_s = now_s - self._span_from_s
        if span_s >= START_SPAN_S:
            seen_bytes_per_s = (delivered_bytes - self._span_from_bytes) / span_s
            self._seen_most_bytes_per_s = max(self._seen_most_bytes_per_s, seen_bytes_per_s)
            self._span_from_s, self._span_from_bytes = now_s, delivered_bytes
        least_bytes_per_s = START_BYTES / min_rtt_s
        queued = queue_s > START_QUEUE_S
        floor_bytes_per_s = least_bytes_per_s / START_HELD if stood_s > START_HELD_QUEUE_S else least_bytes_per_s
        most_bytes_per_s = max(floor_bytes_per_s, (1.0 if queued else START_SEEN) * self._seen_most_bytes_per_s)
        start = self.start_bytes_per_s or least_bytes_per_s
        if not queued and elapsed_s < 1.0:
            start *= 2.0 ** (elapsed_s / (START_DOUBLING_ROUND_TRIPS * min_rtt_s))
        self.start_bytes_per_s = min(start, most_bytes_per_s)

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
        self._queue_rounds += 1
        weight = FORGET_FAST if self._standing_rounds > PATIENT_ROUNDS else FORGET_SLOWLY
        if seen_bytes_per_s >= LUMP_SHARE * believed:
            weight = max(weight, 1.0 / self._queue_rounds)
        weight = 1.0 if first and not self._starting else weight  # a start knows what it brought before
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
        brought = seen_bytes_per_s if rate is None else min(seen_bytes_per_s, SURPLUS * rate)
        self.path_bytes_per_s = max(believed, brought)
        if rate is None:
            return
        if resumes:
            self._use(max(rate, self.path_bytes_per_s * RESUME_SHARE))
            return
        if not self._round_busy or seen_bytes_per_s < 0.85 * rate:
            self._calm_rounds = 0  # something else holds us back: no reason to try more
            return
        self._calm_rounds += 1
        kept_up = seen_bytes_per_s >= KEPT_UP * min(rate, self._rate_before_bytes_per_s)
        if not kept_up and self.queue_s > KEPT_UP_QUEUE_S:
            if rate > self.path_bytes_per_s:
                self._calm_rounds = 0
                self._use(self.path_bytes_per_s * RESUME_SHARE)
            return
        if self._calm_rounds <= HOLD_ROUNDS:
            return
        doublings = max(0, self._calm_rounds - CALM_ROUNDS)
        growth = min(GROWTH_FIRST * 2.0 ** min(doublings, 10), GROWTH_MAX)
        more = 1 + growth if self._calm_rounds > HOLD_ROUNDS + 1 else 1.0
        self._use(max(rate, self.path_bytes_per_s * more))

    def _let_tcp_compete(self, now_s: float, round_s: float) -> None:
        self._yields_from_s = now_s
        self._yield_until_s = now_s + max(self._yield_s, YIELD_ROUNDS * round_s)
        self._yield_s = min(2 * self._yield_s, YIELD_MAX_S)
        self._standing_rounds, self._standing_most_s = 0, 0.0
        self.rate_bytes_per_s = None

    def _use(self, rate_bytes_per_s: float) -> None:
        self._starting = False
        self.rate_bytes_per_s = max(rate_bytes_per_s, RATE_MIN_BYTES_PER_S)


def _allowed_s(min_rtt_s: float, seen_bytes_per_s: float) -> float:
    least_s = QUEUE_MIN_S if min_rtt_s >= NEAR_RTT_S else QUEUE_MIN_NEAR_S
    return max(least_s, min(QUEUE_SHARE * min_rtt_s, QUEUE_SHARE_MAX_S), QUEUE_MIN_BYTES / max(seen_bytes_per_s, 1.0))
