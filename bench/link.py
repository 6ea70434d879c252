"""One direction of a long link, as arithmetic: when does a chunk that enters now come out at the far end?

Owns the model and nothing else: no socket, no clock. A chunk first waits until everything accepted before it has been
put on the wire (the queue), then takes ``size / rate`` to be put on the wire, then travels for the one-way delay and,
if asked for, a random jitter. Chunks never overtake one another, as within a TCP connection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

READ_MIN_BYTES = 4096
READ_MAX_BYTES = 256 * 1024
WINDOW_MIN_BYTES = 16 * 1024 * 1024
WINDOW_MAX_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LinkShape:
    """``rtt_s`` is split evenly over the two directions; ``rate_bytes_per_s`` holds for each direction (inf: no limit).

    ``jitter_s``: up to so much is added to a chunk's one-way delay. ``queue_s``: what may wait in front of the wire,
    as time at the rate; beyond it senders are held back instead of losing packets. ``loss``: the share of packets that
    vanish, for those who have packets (netem); the arithmetic here knows none.
    """

    rtt_s: float
    rate_bytes_per_s: float = math.inf
    jitter_s: float = 0.0
    queue_s: float = 0.010
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not (self.rtt_s >= 0 and self.jitter_s >= 0 and self.queue_s > 0 and self.rate_bytes_per_s > 0):
            raise ValueError(f"a link needs delays >= 0, a queue > 0 and a rate > 0; got {self}")
        if not 0 <= self.loss < 1:
            raise ValueError(f"a link needs a share of lost packets from 0 up to, not including, 1; got {self}")

    @property
    def one_way_delay_s(self) -> float:
        return self.rtt_s / 2

    @property
    def read_bytes(self) -> int:
        """Largest chunk to accept at once: a millisecond of the link, so that small messages are not stuck behind lumps."""
        return int(min(max(self.rate_bytes_per_s * 1e-3, READ_MIN_BYTES), READ_MAX_BYTES))

    @property
    def window_bytes(self) -> int:
        """What one connection may have under way in one direction: at least 2 x rate x RTT, so it is never the bottleneck."""
        wanted = 2 * self.rate_bytes_per_s * (self.rtt_s + self.jitter_s + self.queue_s)
        return int(min(max(wanted, WINDOW_MIN_BYTES), WINDOW_MAX_BYTES))


class Link:
    """The state of one direction: until when the wire is busy, and when the last chunk comes out."""

    def __init__(self, shape: LinkShape, dice: Random) -> None:
        self.shape = shape
        self._dice = dice
        self._wire_free_at_s = -math.inf
        self._last_release_at_s = -math.inf

    def release_at(self, now_s: float, size_bytes: int) -> float:
        """Accept a chunk now; returns the time at which its last byte arrives at the far end."""
        self._wire_free_at_s = max(now_s, self._wire_free_at_s) + size_bytes / self.shape.rate_bytes_per_s
        delay_s = self.shape.one_way_delay_s
        if self.shape.jitter_s:
            delay_s += self._dice.random() * self.shape.jitter_s
        self._last_release_at_s = max(self._last_release_at_s, self._wire_free_at_s + delay_s)
        return self._last_release_at_s

    def queue_wait_s(self, now_s: float) -> float:
        """How long a chunk that enters now would wait before it gets the wire."""
        return max(0.0, self._wire_free_at_s - now_s)

    def is_full(self, now_s: float) -> bool:
        return self.queue_wait_s(now_s) > self.shape.queue_s

    def ready_at(self) -> float:
        """When the queue will be half empty: the moment to let senders on again without switching for every chunk."""
        return self._wire_free_at_s - self.shape.queue_s / 2
