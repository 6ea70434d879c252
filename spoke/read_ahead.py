"""Carries out the choice of the kernel's readahead: the setting, or what the mount's READs show (:mod:`spoke.prefetch.readahead`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from common.log import get_logger
from spoke.fuse.readahead import KernelReadAhead
from spoke.prefetch.quiet import Quiet
from spoke.prefetch.readahead import DEFAULT_KIB, Choice, ReadAheadChooser
from spoke.reads import Handle

log = get_logger(__name__)

_SEEN_READS = 16  # they are looked at together: what is chosen is for files that are opened later


class ReadAhead:
    """``fixed_kib``: the setting, or None to choose. ``foretold(version)``: whether an order explains what is read of a file."""

    def __init__(self, fixed_kib: int | None, foretold: Callable[[bytes], bool]) -> None:
        self._fixed_kib = fixed_kib
        self._chooser = ReadAheadChooser(foretold)
        self._kernel: KernelReadAhead | None = None
        self._failure: str | None = None
        self._changes = 0
        self._unseen: list[tuple[int, bytes, int, int, int]] = []
        self.kib = DEFAULT_KIB
        """In force for files opened now."""

    def mounted(self, kernel: KernelReadAhead) -> None:
        """The mount is there: look at what it has, and set what is wished."""
        self._kernel = kernel
        # Where it cannot be seen: what the kernel was told when it connected.
        self.kib = kernel.kib() or min(self._fixed_kib or DEFAULT_KIB, DEFAULT_KIB)
        self._set(self._wish)

    def opened(self, handle: Handle) -> None:
        handle.fault_bytes = self.kib * 1024

    @property
    def is_chosen(self) -> bool:
        """By what is read: READs must be told of."""
        return self._fixed_kib is None

    def read(self, handle: Handle, offset_bytes: int, length_bytes: int) -> None:
        """A READ that reached us."""
        if self._fixed_kib is not None:
            return
        unseen = self._unseen
        unseen.append((handle.handle_id, handle.version, offset_bytes, length_bytes, handle.fault_bytes))
        if len(unseen) >= _SEEN_READS:
            self._look()

    def _look(self) -> None:
        """At the READs that came since."""
        unseen = self._unseen
        if not unseen:
            return
        self._unseen = []
        if self._chooser.read_all(unseen):
            self._set(self._wish)

    def noted(self, quiet: Quiet, end_bytes: int) -> None:
        """READs that were only noted, up to here: those of the last handle among them, since it came."""
        self._look()
        length_bytes, reads = end_bytes - quiet.part_bytes, quiet.reads - quiet.part_reads
        if reads > 0 and self._chooser.read(
            quiet.handle_id, quiet.seen.version, quiet.part_bytes, length_bytes, quiet.seen.fault_bytes, reads
        ):
            self._set(self._wish)

    def handed_over(self, quiet: Quiet, handle: Handle, offset_bytes: int, length_bytes: int) -> None:
        """A READ that was noted with those of another handle: the kernel reads ahead for each by itself."""
        if self._fixed_kib is not None:
            return
        quiet.reads -= 1  # this one
        self.noted(quiet, offset_bytes)
        quiet.reads += 1
        self.read(handle, offset_bytes, length_bytes)
        quiet.handle_id, quiet.part_bytes, quiet.part_reads = handle.handle_id, offset_bytes + length_bytes, quiet.reads

    @property
    def _wish(self) -> Choice:
        return self._chooser.choice if self._fixed_kib is None else Choice(self._fixed_kib, "as set")

    def _set(self, wish: Choice) -> None:
        if self._kernel is None or wish.kib == self.kib:
            return
        try:
            self._kernel.set_kib(wish.kib)
        except OSError as error:
            if self._failure is None:
                log.warning(
                    "the kernel's readahead stays as it is", kib=self.kib, wished_kib=wish.kib, error=error.strerror
                )
            self._failure = f"{self._kernel.path} cannot be written: {error.strerror}"
            return
        self._failure = None
        self._changes += 1
        # What the kernel made of it; where that cannot be seen, what was asked for.
        self.kib = self._kernel.kib() or wish.kib
        log.info("the kernel's readahead for files opened from now on", kib=self.kib, reason=wish.reason)

    def facts(self) -> Mapping[str, Any]:
        """For ``status``. ``kib``: in force for files opened now; ``wished_kib``: what is thought best, and why."""
        self._look()
        seen = self._chooser.seen
        return {
            "kib": self.kib,
            "wished_kib": self._wish.kib,
            "reason": self._wish.reason,
            "setting": "auto" if self._fixed_kib is None else self._fixed_kib,
            "failure": self._failure,
            "changes": self._changes,
            "seen": {name: round(value, 1) for name, value in seen._asdict().items()},
        }
