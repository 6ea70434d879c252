"""TLS between a protocol of ours and its socket: the protocol sees the transport it would see without, from the first moment.

asyncio has such a layer too; this one differs in what is needed here. The protocol hears of the connection before the
handshake, so that its limits on silence and number hold then as well. A refusal reaches the other end as an alert, which
asyncio drops. The write buffer is the socket's, so that the order of sending stays ours. Bytes are decrypted into the
protocol's own buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterable
from typing import Any, Protocol, cast

from common.errors import AuthenticationFailed
from common.tls import explain

_RECEIVE_BYTES = 256 * 1024
_SEND_BYTES = 128 * 1024
TLS_HELD_BACK_BYTES = 20 * 1024
"""More than a record has (16 KiB and its frame): what can have come and not be decrypted yet, for want of the record's end."""

_Bytes = bytes | bytearray | memoryview


class _Scratch(threading.local):
    """Where ciphertext lands on its way to OpenSSL: nothing stays in it, so all connections of a thread share one."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_RECEIVE_BYTES))


_scratch = _Scratch()


class SecuredProtocol(Protocol):
    """What is wrapped: an asyncio.BufferedProtocol that also hears of TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def secured(self) -> None:
        """The handshake is done; ``get_extra_info("peercert")`` says who is there."""

    def insecure(self, error: AuthenticationFailed) -> None:
        """The two ends do not come together. The alert is on its way; the transport closes by itself."""


class Tls(asyncio.BufferedProtocol):
    """The protocol that the socket's transport sees. ``host``: the name that the other end's certificate must have; None: we serve.

    ``in_the_clear``: what a peer is told that does not speak TLS.
    """

    def __init__(
        self, inner: SecuredProtocol, context: ssl.SSLContext, *, host: str | None = None, in_the_clear: bytes = b""
    ) -> None:
        self.inner = inner
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=host is None, server_hostname=host)
        self._serves = host is None
        self._in_the_clear = in_the_clear
        self._raw: asyncio.Transport | None = None
        self._transport: TlsTransport | None = None
        self._backlog: list[bytes] = []
        self._began = False
        self._shaken = False
        self._heard = False
        self._paused = False
        self.closing = False

    # --- what the socket's transport tells ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._transport = TlsTransport(self, self._raw)
        self.inner.connection_made(self._transport)
        if not self._serves and not self.closing:
            self._advance()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        came = _scratch.view[:nbytes]
        if not self._began:
            self._began = True
            if self._serves and nbytes >= 3 and not (came[0] == 0x16 and came[1] == 3 and 1 <= came[2] <= 4):
                self._refuse_clear_text()
                return
        self._incoming.write(came)
        self._advance()

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    # --- in ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if self.closing:
            return
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                self.inner.secured()
                backlog, self._backlog = self._backlog, []
                self._encrypt(backlog)
            self._read()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def _read(self) -> None:
        """All that is here, into the buffers of the protocol, each filled as far as it goes before it is reported."""
        while not self._paused and not self.closing:
            buffer = self.inner.get_buffer(-1)
            filled, ended = 0, False
            try:
                while filled < len(buffer):
                    free = buffer[filled:] if filled else buffer
                    got = cast(int, self._tls.read(len(free), free))  # bytes only where there is no buffer
                    if not got:
                        ended = True
                        break
                    filled += got
            except ssl.SSLWantReadError:
                if not filled:
                    return
            except ssl.SSLZeroReturnError:
                ended = True
            if filled:
                self._heard = True
                self.inner.buffer_updated(filled)
            if ended:
                self.inner.eof_received()
                self.close()

    def _fail(self, error: ssl.SSLError) -> None:
        self._flush()  # the alert that tells the other end why
        peer = self._raw.get_extra_info("peername") if self._raw is not None else None
        where = f" at {peer[0]}" if isinstance(peer, tuple) else ""
        said = explain(error, f"the spoke{where}" if self._serves else f"the hub{where}")
        if self._heard:  # the two had come together: this is damage, on the way or by one who meddles
            said = AuthenticationFailed(f"bytes of the TLS connection were changed on the way ({error.reason})")
        self.inner.insecure(said)
        self.close()

    def _refuse_clear_text(self) -> None:
        assert self._raw is not None
        self._raw.write(self._in_the_clear)
        self.inner.insecure(AuthenticationFailed("it does not speak TLS: give both ends certificates, or neither"))
        self.closing = True
        self._raw.close()

    # --- out, for the transport -------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """What waits for the handshake."""
        return sum(map(len, self._backlog))

    def write(self, chunks: Iterable[_Bytes]) -> None:
        if self.closing:
            return
        if not self._shaken:
            self._backlog += map(bytes, chunks)
            return
        try:
            self._encrypt(chunks)
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def _encrypt(self, chunks: Iterable[_Bytes]) -> None:
        for chunk in chunks:
            rest = memoryview(chunk).cast("B")
            while rest:  # a record at a time
                rest = rest[self._tls.write(rest) :]
                if self._outgoing.pending >= _SEND_BYTES:  # while the processor still has it at hand
                    self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            asyncio.get_running_loop().call_soon(self._advance)

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        if self._shaken:
            with contextlib.suppress(ssl.SSLError, ValueError):
                self._tls.unwrap()  # our close_notify; the other end's is not waited for
            self._flush()
        if self._raw is not None:
            self._raw.close()

    def peer_certificate(self) -> dict[str, Any] | None:
        return cast("dict[str, Any] | None", self._tls.getpeercert()) if self._shaken else None


class TlsTransport(asyncio.Transport):
    """What the protocol of ours writes to and asks."""

    def __init__(self, tls: Tls, raw: asyncio.Transport) -> None:
        super().__init__()
        self._tls = tls
        self._raw = raw

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``peercert`` as of ssl; all else is the socket's."""
        return self._tls.peer_certificate() if name == "peercert" else self._raw.get_extra_info(name, default)

    def write(self, data: _Bytes) -> None:
        self._tls.write((data,))

    def writelines(self, list_of_data: Iterable[_Bytes]) -> None:
        self._tls.write(list_of_data)

    def write_eof(self) -> None:
        """Without close_notify, after which OpenSSL would read no further; our GOODBYE has said it."""
        if not self._raw.is_closing():
            self._raw.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() + self._tls.waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._tls.pause_reading()
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        if not self._raw.is_closing():
            self._raw.resume_reading()
        self._tls.resume_reading()

    def is_closing(self) -> bool:
        return self._tls.closing or self._raw.is_closing()

    def close(self) -> None:
        self._tls.close()

    def abort(self) -> None:
        self._tls.closing = True
        self._raw.abort()
