"""Plan files: the reads of a job as text, one a line, for ``plan declare`` (and for people).

A line is ``PATH OFFSET LENGTH``, or a JSON object ``{"path": …, "offset": …, "length": …}`` where a path needs it (blanks at
its ends, line ends). A range past the end of its file is cut. Empty lines and those that begin with ``#`` are passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from common import limits
from common.errors import UsageError

LINE_MAX_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"  # some editors begin a file with it


class PlannedRange(NamedTuple):
    """``path``: as it stands in the file, absolute or below the mount."""

    path: str
    offset_bytes: int
    length_bytes: int


def read_plan_file(lines: Iterable[bytes]) -> Iterator[PlannedRange]:
    """Lazily, a line at a time. Raises UsageError with the line's number for one that cannot be."""
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(_BOM if number == 1 else b"").decode("utf-8", "surrogateescape").strip()
        if not text or text.startswith("#"):
            continue
        try:
            if len(line) > LINE_MAX_BYTES:
                raise ValueError(f"{len(line)} bytes in one line; at most {LINE_MAX_BYTES}")
            yield _from_json(text) if text.startswith("{") else _from_words(text)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError(
                f"line {number} of the plan, {text[:80]!r}: {error}; it must be PATH OFFSET LENGTH, or an object with "
                "path, offset and length"
            ) from None


def _from_words(text: str) -> PlannedRange:
    words = text.rsplit(None, 2)
    if len(words) != 3:
        raise ValueError("three words are needed")
    return _checked(words[0], int(words[1]), int(words[2]))


def _from_json(text: str) -> PlannedRange:
    found = json.loads(text)
    path, offset_bytes, length_bytes = found["path"], found["offset"], found["length"]
    if not isinstance(path, str) or type(offset_bytes) is not int or type(length_bytes) is not int:
        raise TypeError("path is text, offset and length are whole numbers")
    return _checked(path, offset_bytes, length_bytes)


def _checked(path: str, offset_bytes: int, length_bytes: int) -> PlannedRange:
    if len(os.fsencode(path)) > limits.PLAN_PATH_MAX_BYTES:
        raise ValueError(f"a path of {len(os.fsencode(path))} bytes; at most {limits.PLAN_PATH_MAX_BYTES}")
    if offset_bytes < 0 or length_bytes <= 0 or offset_bytes + length_bytes > limits.FILE_MAX_BYTES:
        raise ValueError(f"{length_bytes} bytes from {offset_bytes} on")
    return PlannedRange(path, offset_bytes, length_bytes)
