"""Whether a source of predictions may spend bytes: what it fetched and was used, against what was not. Pure, and without a clock.

:class:`Trust` serves sources that guess: distrust passes as reads go on. :class:`Gate` serves orders: one that does not pay is
switched off and goes on predicting without fetching; what would have been used opens it again.
"""

from __future__ import annotations

from common import limits

_ALLOWANCE_BYTES, _WASTE_SHARE = limits.PREFETCH_WASTE_ALLOWANCE_BYTES, limits.PREFETCH_WASTE_SHARE


class Gate:
    """``allowance_bytes``: waste forgiven without any use. A source pays while no more than ``share`` of what it fetches is wasted."""

    __slots__ = ("_allowance_bytes", "_share", "_trial_bytes", "_used", "_wasted", "closed_count", "is_open")

    def __init__(
        self,
        allowance_bytes: int = limits.PREFETCH_GATE_ALLOWANCE_BYTES,
        share: float = limits.PREFETCH_GATE_WASTE_SHARE,
    ) -> None:
        self._allowance_bytes = allowance_bytes
        self._share = share
        self._used = 0.0
        self._wasted = 0.0
        self._trial_bytes = limits.PREFETCH_GATE_TRIAL_BYTES
        self.is_open = True
        self.closed_count = 0

    def used(self, size_bytes: int) -> None:
        """Bytes that were predicted (and, while open, fetched) were read."""
        self._used += size_bytes
        self._judge()

    def wasted(self, size_bytes: int) -> None:
        """Bytes that were predicted were not read in time to be of use."""
        self._wasted += size_bytes
        self._judge()

    def refunded(self, size_bytes: int) -> None:
        """What had been called wasted was read after all."""
        self._wasted = max(0.0, self._wasted - size_bytes)
        self.used(size_bytes)

    def _judge(self) -> None:
        seen = self._used + self._wasted
        if self.is_open:
            if self._wasted > self._allowance_bytes + self._share * seen:
                self.is_open = False
                self.closed_count += 1
                self._used = self._wasted = 0.0
        elif seen >= self._trial_bytes:
            self.is_open = self._wasted <= self._share * seen
            if not self.is_open:  # each trial in vain makes the next one longer
                self._trial_bytes = min(2 * self._trial_bytes, limits.PREFETCH_GATE_TRIAL_MAX_BYTES)
            self._used = self._wasted = 0.0
        if seen > limits.PREFETCH_GATE_MEMORY_BYTES:
            self._used /= 2
            self._wasted /= 2


class ReadBytes:
    """``total``: bytes that were read. Several judgements may rest on one, so that a READ is counted once."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Trust:
    """Whether predictions earn their bytes: what was prefetched and never read, against what was read.

    Distrust passes by itself as reads go on: what is held against it never exceeds what is forgiven by that much.
    """

    __slots__ = ("read", "wasted_bytes")

    def __init__(self, read: ReadBytes) -> None:
        self.read = read
        self.wasted_bytes = 0

    @property
    def _forgiven_bytes(self) -> float:
        return _ALLOWANCE_BYTES + _WASTE_SHARE * self.read.total

    @property
    def earned(self) -> bool:
        wasted_bytes = self.wasted_bytes  # asked for most READs, so forgiven bytes are computed in place
        return not wasted_bytes or wasted_bytes <= _ALLOWANCE_BYTES + _WASTE_SHARE * self.read.total

    def wasted(self, size_bytes: int) -> None:
        most_bytes = int(self._forgiven_bytes) + limits.PREFETCH_DISTRUST_MAX_BYTES
        self.wasted_bytes = max(self.wasted_bytes, min(self.wasted_bytes + size_bytes, most_bytes))

    def used_after_all(self, size_bytes: int) -> None:
        self.wasted_bytes = max(0, self.wasted_bytes - size_bytes)
