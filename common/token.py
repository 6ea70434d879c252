"""The shared token of a closed network: read from its file, and read again when the file changes."""

from __future__ import annotations

import os
from pathlib import Path

from common import limits
from common.errors import AuthenticationFailed, UsageError
from common.log import get_logger
from common.tls import check_private

log = get_logger(__name__)


class TokenFile:
    """Raises UsageError at once when the file cannot be used; later the last good token stays in force, with a line in the log.

    ``may_wait``: a file that cannot be used yet is no reason not to begin; until it can, each connection is refused with the reason.
    """

    def __init__(self, path: Path, *, may_wait: bool = False) -> None:
        self._path = path
        self._signature: tuple[int, int, int] | None = None
        self._tried: tuple[int, int, int] | None = None
        self._token = b""
        self._failure = ""
        try:
            self._tried = self._look()
            self._token = self._read()
            self._signature = self._tried
        except UsageError as error:
            if not may_wait:
                raise
            self._failure = str(error)
            log.error("the token file cannot be used; without it no connection is made", error=str(error))

    def current(self) -> bytes:
        """For a connection that begins now. Raises AuthenticationFailed while there was no good one yet."""
        self._refresh()
        if not self._token:
            raise AuthenticationFailed(self._failure)
        return self._token

    def _refresh(self) -> None:
        try:
            signature = self._look()
        except UsageError as error:
            self._complain(None, error)
            return
        if signature not in (self._signature, self._tried):
            try:
                self._token, self._signature = self._read(), signature
                log.info("the token was read anew", path=str(self._path))
            except UsageError as error:
                self._complain(signature, error)

    def _complain(self, signature: tuple[int, int, int] | None, error: UsageError) -> None:
        """Once for each state of the file."""
        if signature != self._tried:
            self._tried, self._failure = signature, str(error)
            log.error("the token file cannot be used, going on with the token read before", error=str(error))

    def _look(self) -> tuple[int, int, int]:
        try:
            facts = os.stat(self._path)
        except OSError as error:
            raise UsageError(f"token file {self._path}: {error.strerror}") from None
        return facts.st_ino, facts.st_size, facts.st_mtime_ns

    def _read(self) -> bytes:
        check_private(self._path, "token file")
        try:
            with self._path.open("rb") as file:
                token = file.read(limits.TOKEN_FILE_MAX_BYTES + 1).strip()
        except OSError as error:
            raise UsageError(f"token file {self._path}: {error.strerror}") from None
        if not limits.TOKEN_MIN_BYTES <= len(token) <= limits.TOKEN_FILE_MAX_BYTES:
            raise UsageError(
                f"token file {self._path} holds {len(token)} bytes; {limits.TOKEN_MIN_BYTES} to {limits.TOKEN_FILE_MAX_BYTES} "
                f"are allowed, random ones: openssl rand -hex 32 > {self._path}"
            )
        return token
