"""Writes down in which order places are read for the first time, and finds where that order begins anew: an epoch. Pure.

A step is a READ as it came (a random page fault is one of 128 KiB); READs that go on where one of the last ones ended make
it longer, up to an extent, while little else is read between them: a sweep by one reader costs one step a MiB. A place in a few
hundred is taken for one read before (recording.PlaceFilter), and left out. An epoch is over when its beginning is read again, in its
order, or when little else than what was read before is read for long (another shuffle of the same places).
What a job reads twice meanwhile (an index, a validation set) is too little for either.
"""

from __future__ import annotations

from collections.abc import Callable

from common import limits
from common.blocks import EXTENT_BYTES
from spoke.prefetch.chains import FileFacts
from spoke.prefetch.recording import MAX_STEPS, PAGE_SHIFT, STEP_BYTES, Ended, Recording, Steps

_EXTENT_SHIFT = EXTENT_BYTES.bit_length() - 1
_UNCUT_BYTES = 128 * 1024
_EXTENT_PAGES = EXTENT_BYTES >> PAGE_SHIFT
_RUN_BYTES = 3 * EXTENT_BYTES  # shorter ones are not worth more than a look each
_PAGE_MASK = (1 << PAGE_SHIFT) - 1
_ENDS = 64
_TOGETHER_BYTES = EXTENT_BYTES
"""A step is of what was read while so much was read in all, so that steps followed one by one are in order to within that: with 16
streams read by turns a step of an extent ended 15 MiB after its beginning, more than may lie ahead in a small cache."""
_HEAD_STEPS = 64
_HEAD_SEEN = 40
_HEAD_WITHIN_READS = 512
_HEAD_FROM_STEPS = 256
_AGAIN_MIN = 256
_AGAIN_SHARE = 8
_AGAIN_KEPT = 1024
_NEW_AMONG_AGAIN = 3
_NEW_MAX = 64
_FILE_BYTES = 400
_RECORDINGS = 3  # one grows, one waits, one is written


class OrderRecorder:
    """``memory_bytes``: for all recordings, the one that grows, one that waits and one that is being written.

    ``on_end`` is called when :meth:`take` has something, ``on_drop`` with a recording that nobody will ever take; ``on_look`` before
    anything else than a READ happens to what was recorded: READs may be told of by several.
    """

    def __init__(self, memory_bytes: int) -> None:
        each_bytes = memory_bytes // _RECORDINGS
        self.max_steps = min(MAX_STEPS, max(_HEAD_FROM_STEPS, each_bytes * 3 // 4 // STEP_BYTES))
        self.max_files = max(_HEAD_STEPS, each_bytes // 4 // _FILE_BYTES)
        self.on_end: Callable[[], None] | None = None
        self.on_drop: Callable[[Recording], None] | None = None
        self.on_look: Callable[[], None] = lambda: None
        self.epochs_total = 0
        self._begun_total = 0
        self.dropped_total = 0
        """Recordings that were over before the one before them was taken."""
        self._finished: Recording | None = None
        self._last_read_s = 0.0
        self._begin()

    # --- events ------------------------------------------------------------------------------------------

    def read(self, now_s: float, file: FileFacts, start_bytes: int, length_bytes: int, *, explained: bool) -> None:
        """A READ at the mount, or several in a row. ``explained``: an order that is followed knew of it."""
        self._last_read_s = now_s
        recording = self.recording
        recording.reads += 1
        recording.read_bytes += length_bytes
        if explained:
            recording.explained_bytes += length_bytes
        number = recording.numbers.get(file.version)
        if number is None:
            number = self._add_file(file)
        end_bytes = start_bytes + length_bytes
        end_bytes = min(end_bytes, file.size_bytes)
        if end_bytes - start_bytes <= _UNCUT_BYTES:
            if start_bytes < end_bytes:
                self._touch(number, start_bytes, end_bytes)
        else:
            while start_bytes < end_bytes:
                cut_bytes = min(end_bytes, (start_bytes >> _EXTENT_SHIFT) + 1 << _EXTENT_SHIFT)
                if self.recording is not recording:  # an epoch ended here: files are counted anew
                    recording = self.recording
                    number = self._add_file(file)
                if cut_bytes - start_bytes == EXTENT_BYTES and end_bytes - start_bytes >= _RUN_BYTES:
                    start_bytes += self._sweep(number, start_bytes, end_bytes - start_bytes >> _EXTENT_SHIFT)
                    cut_bytes = min(end_bytes, (start_bytes >> _EXTENT_SHIFT) + 1 << _EXTENT_SHIFT)
                if start_bytes < end_bytes:
                    self._touch(number, start_bytes, cut_bytes)
                start_bytes = cut_bytes

    def tend(self, now_s: float, open_handles: int) -> None:
        """End what nobody goes on with: a job that closed all its files, or one that rests longer than an evaluation takes."""
        self.on_look()
        rest_s = limits.LEARN_REST_S if open_handles else limits.LEARN_CLOSED_REST_S
        if len(self.recording.steps) and now_s - self._last_read_s >= rest_s:
            self._end("job")

    def stop(self) -> None:
        """The daemon ends: what was recorded so far is all there will be."""
        self.on_look()
        self._end("stop")

    def reset(self) -> None:
        """Forget what was recorded."""
        self.on_look()
        finished, self._finished = self._finished, None
        self._drop(finished)
        self._drop(self.recording)
        self._begin()

    def take(self) -> Recording | None:
        """A recording that is over, once."""
        finished, self._finished = self._finished, None
        return finished

    @property
    def steps(self) -> int:
        """Recorded of the epoch that is read now."""
        self.on_look()
        return len(self.recording.steps)

    # --- inside ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._begun_total += 1
        self.recording = Recording(f"recording {self._begun_total}", self.max_steps)
        """The one that grows."""
        self._ends: dict[int, tuple[bool, int, int]] = {}
        """Where a step ended: whether it is one read again, its row, how much had been read when it began."""
        self._head: set[int] = set()
        self._head_seen: set[int] = set()
        self._head_seen_from = 0
        self._again = Steps()
        self._again_count = 0
        self._new_count = 0

    def _add_file(self, file: FileFacts) -> int:
        known = self.recording.file_of(file.version)
        if known is not None:
            return known
        if len(self.recording.files) >= self.max_files:
            self._end("full")
        return self.recording.add_file(file)

    def _touch(self, file: int, start_bytes: int, end_bytes: int) -> None:
        ends, recording = self._ends, self.recording
        first_page = recording.first_pages[file]
        place, end_place = first_page + (start_bytes >> PAGE_SHIFT), first_page + (end_bytes + _PAGE_MASK >> PAGE_SHIFT)
        run = ends.pop(place, None)
        if run is not None:
            is_again, row, began_bytes = run
            steps = self._again if is_again else recording.steps
            is_soon = recording.read_bytes - began_bytes <= _TOGETHER_BYTES
            if is_soon and (steps.offsets[row] ^ end_bytes - 1) >> _EXTENT_SHIFT == 0:
                if is_again:
                    steps.lengths[row] += end_bytes - start_bytes
                else:
                    recording.lengthen(row, end_bytes - start_bytes)
                ends[end_place] = run
                return
        if not recording.seen.add(place):
            self._read_again(file, start_bytes, end_bytes, place, end_place)
            return
        if run is None:
            recording.jumps += 1
        row = recording.append(file, start_bytes, end_bytes - start_bytes, place)
        if row < _HEAD_STEPS:
            self._head.add(place)
        ends[end_place] = False, row, recording.read_bytes
        if len(ends) > _ENDS:
            del ends[next(iter(ends))]
        if self._again_count:
            self._read_new(1)
        if row + 1 >= self.max_steps:
            self._end("full")

    def _sweep(self, file: int, start_bytes: int, count: int) -> int:
        """Whole extents in a row of which nothing was read before, at most ``count``: as :meth:`_touch` would, each a step.

        Returns the bytes that were recorded, maybe none: where one was read before, or something else is to be looked at.
        """
        recording, ends = self.recording, self._ends
        rows = len(recording.steps)
        if rows < _HEAD_STEPS or rows + count >= self.max_steps:
            return 0
        place = recording.first_pages[file] + (start_bytes >> PAGE_SHIFT)
        places = range(place, place + count * _EXTENT_PAGES, _EXTENT_PAGES)
        count = recording.seen.add_new(places)
        if not count:
            return 0
        if ends.pop(place, None) is None:
            recording.jumps += 1
        places = places[:count]
        for known in places[1:]:
            ends.pop(known, None)
        row = recording.extend(file, start_bytes, EXTENT_BYTES, places)
        ends[places[-1] + _EXTENT_PAGES] = False, row, recording.read_bytes
        if len(ends) > _ENDS:
            del ends[next(iter(ends))]
        if self._again_count:
            self._read_new(count)
        return count * EXTENT_BYTES

    def _read_new(self, count: int) -> None:
        """Places not read before, after some that were: enough of them, and those do not count."""
        self._new_count += count
        if self._new_count > _NEW_MAX and self._new_count * _NEW_AMONG_AGAIN > self._again_count:
            self._forget_again()

    def _note_end(self, end_place: int, is_again: bool, row: int) -> None:
        self._ends[end_place] = is_again, row, self.recording.read_bytes
        if len(self._ends) > _ENDS:
            del self._ends[next(iter(self._ends))]

    def _read_again(self, file: int, start_bytes: int, end_bytes: int, place: int, end_place: int) -> None:
        recording, again = self.recording, self._again
        self._again_count += 1
        if len(again) < _AGAIN_KEPT:
            self._note_end(end_place, True, again.append(file, start_bytes, end_bytes - start_bytes))
        steps = len(recording.steps)
        if place in self._head and steps >= _HEAD_FROM_STEPS:
            if not self._head_seen or recording.reads - self._head_seen_from > _HEAD_WITHIN_READS:
                self._head_seen.clear()
                self._head_seen_from = recording.reads
            self._head_seen.add(place)
            if len(self._head_seen) >= _HEAD_SEEN:
                self._end("epoch")
                return
        if (
            self._again_count >= max(_AGAIN_MIN, steps // _AGAIN_SHARE)
            and self._new_count * _NEW_AMONG_AGAIN <= self._again_count
        ):
            self._end("epoch")

    def _forget_again(self) -> None:
        self._again = Steps()
        self._ends = {place: run for place, run in self._ends.items() if not run[0]}
        self._again_count = self._new_count = 0

    def _end(self, why: Ended) -> None:
        """Hand over what was recorded; what was read again is how the next epoch begins."""
        recording, again = self.recording, self._again
        self._begin()
        recording.ended = why
        if why == "epoch":
            self.epochs_total += 1
            for file, offset_bytes, length_bytes in zip(again.files, again.offsets, again.lengths, strict=True):
                number = self._add_file(recording.files[file])
                self._touch(number, offset_bytes, offset_bytes + length_bytes)
        if not recording.is_worth_it:
            self._drop(recording)
            return
        if self._finished is not None:
            self.dropped_total += 1
            self._drop(self._finished)
        self._finished = recording
        if self.on_end is not None:
            self.on_end()

    def _drop(self, recording: Recording | None) -> None:
        if recording is not None and self.on_drop is not None:
            self.on_drop(recording)
