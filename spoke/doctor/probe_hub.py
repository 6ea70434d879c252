"""Talking to the hub once: dial, HELLO, some PINGs, GOODBYE. A plain blocking socket with a deadline on every step.

It shows what the mount would (:mod:`spoke.doctor.showing`), but introduces itself as a spoke of its own (``HOST (doctor)``; where
that one may read nothing, as the mount's identity), and reads no data. Runs in a thread: name service knows no timeout.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace

from common.errors import (
    AuthenticationFailed,
    HeadraceError,
    NotAllowed,
    ProtocolError,
    UnknownDataset,
    VersionMismatch,
    from_wire,
)
from common.limits import (
    DOCTOR_DIAL_TIMEOUT_S,
    DOCTOR_HELLO_TIMEOUT_S,
    DOCTOR_HUB_TIMEOUT_S,
    DOCTOR_PINGS,
    DOCTOR_PINGS_S,
)
from common.tcp import path_facts, tune
from common.tls import explain
from common.units import format_address
from common.wire.connection import WIRE_VERSIONS, Closed, Connection, Role
from common.wire.messages import Challenge, Error, Goodbye, Hello, Message, Ping, Pong, Welcome
from spoke.doctor.facts import HubFacts, HubState
from spoke.doctor.showing import Showing
from spoke.hub_client.credentials import Credentials

NO_DATASET = "?"
"""Asked for when no dataset was named: never the name of one, so the hub answers with those it has."""

_IP_MTU, _IPV6_MTU = 14, 24  # linux/in.h, linux/in6.h
_TCP_INFO_PMTU_OFFSET = 60


class _Given(Exception):
    """How far it came; carries the facts."""

    def __init__(self, facts: HubFacts) -> None:
        super().__init__(facts.said)
        self.facts = facts


def hub_facts(
    host: str, port: int, dataset: str | None, now_s: Callable[[], float], show: Showing | None = None
) -> HubFacts:
    """What the hub at this address says, within DOCTOR_HUB_TIMEOUT_S. Raises nothing that the network can cause."""
    show = show or Showing()
    facts = HubFacts(
        address=format_address(host, port),
        dataset=dataset or "",
        shown=show.said,
        certificate_left_s=show.certificate_left_s,
    )
    if show.failure:
        return replace(facts, state=HubState.NOTHING_TO_SHOW, said=show.failure)
    end_s = now_s() + DOCTOR_HUB_TIMEOUT_S
    try:
        for identity in (f"{socket.gethostname()[:200]} (doctor)", show.identity):
            with _dialled(facts, host, port, now_s) as (sock, connected):
                facts = _shake(sock, connected, host, show, identity, end_s, now_s)
            if facts.state is not HubState.NOT_ALLOWED or not show.identity:
                break
    except _Given as given:
        return given.facts
    return facts


def _shake(
    sock: socket.socket,
    facts: HubFacts,
    host: str,
    show: Showing,
    identity: str,
    end_s: float,
    now_s: Callable[[], float],
) -> HubFacts:
    """TLS, if the mount speaks it, and then what is said inside."""
    certificates = show.credentials.certificates
    if certificates is None:
        return _greet(sock, facts, show.credentials, identity, end_s, now_s)
    sock.settimeout(min(DOCTOR_HELLO_TIMEOUT_S, max(0.1, end_s - now_s())))
    try:
        with certificates.client().wrap_socket(sock, server_hostname=show.credentials.hub_name or host) as secured:
            return _greet(secured, facts, show.credentials, identity, end_s, now_s)
    except ssl.SSLError as error:
        return replace(facts, state=HubState.ASKS_WHO, said=str(explain(error, facts.address)))
    except TimeoutError:
        said = f"no TLS handshake within {DOCTOR_HELLO_TIMEOUT_S:g} s"
        return replace(facts, state=HubState.SILENT, said=said)
    except OSError as error:
        return replace(facts, state=HubState.SILENT, said=error.strerror or str(error))


@contextlib.contextmanager
def _dialled(
    facts: HubFacts, host: str, port: int, now_s: Callable[[], float]
) -> Iterator[tuple[socket.socket, HubFacts]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _Given(replace(facts, state=HubState.NO_NAME, said=error.strerror or str(error))) from None
    end_s = now_s() + DOCTOR_DIAL_TIMEOUT_S
    failed = facts
    for number, (family, kind, protocol, _, address) in enumerate(found):
        tried = _with_route(facts, family, address)
        with socket.socket(family, kind, protocol) as sock:
            sock.settimeout(max(0.1, (end_s - now_s()) / (len(found) - number)))
            began_s = now_s()
            try:
                sock.connect(address)
            except OSError as error:
                if failed.state is HubState.NOT_ASKED or isinstance(error, ConnectionRefusedError):
                    failed = _not_dialled(tried, error)
                continue
            connect_s = now_s() - began_s
            heard = path_facts(sock)
            if heard is not None and heard.rtt_s > 0:  # from SYN to its answer, as the kernel saw it
                connect_s = min(connect_s, heard.rtt_s)
            tune(sock)
            mtu_bytes = _path_mtu_bytes(sock) or tried.mtu_bytes
            yield sock, replace(tried, connect_s=connect_s, mtu_bytes=mtu_bytes)
            return
    raise _Given(failed)


def _not_dialled(facts: HubFacts, error: OSError) -> HubFacts:
    if isinstance(error, TimeoutError):
        return replace(facts, state=HubState.UNREACHABLE, said=f"no answer to SYN within {DOCTOR_DIAL_TIMEOUT_S:g} s")
    if isinstance(error, ConnectionRefusedError):
        return replace(facts, state=HubState.REFUSED, said="connection refused")
    return replace(facts, state=HubState.UNREACHABLE, said=error.strerror or str(error))


def _with_route(facts: HubFacts, family: int, address: tuple[object, ...]) -> HubFacts:
    """The route's MTU, and whether it leaves this host: by a UDP socket that sends nothing."""
    is_ipv6 = family == socket.AF_INET6
    level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if is_ipv6 else (socket.IPPROTO_IP, _IP_MTU)
    facts = replace(facts, is_ipv6=is_ipv6)
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        stays_here = sock.getsockname()[0] == sock.getpeername()[0]
        return replace(facts, mtu_bytes=sock.getsockopt(level, option), is_loopback=stays_here)
    return facts


def _path_mtu_bytes(sock: socket.socket) -> int | None:
    """What TCP believes the path takes (tcpi_pmtu)."""
    with contextlib.suppress(OSError, struct.error):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_PMTU_OFFSET + 4)
        return int(struct.unpack_from("=I", info, _TCP_INFO_PMTU_OFFSET)[0]) or None
    return None


class _Talk:
    """One connection, message by message. Raises HeadraceError when it ends, TimeoutError when it is silent."""

    def __init__(self, sock: socket.socket, now_s: Callable[[], float]) -> None:
        self._sock = sock
        self._now_s = now_s
        self._connection = Connection(Role.SPOKE)
        self._messages: list[Message] = []
        self._ended: str | None = None

    def send(self, message: Message) -> None:
        self._connection.send(message)
        self._flush()

    def _flush(self) -> None:
        for chunk in self._connection.data_to_send():
            self._sock.sendall(chunk)

    def receive(self, end_s: float) -> Message:
        while not self._messages:
            if self._ended is not None:
                raise ProtocolError(self._ended)
            left_s = end_s - self._now_s()
            if left_s <= 0:
                raise TimeoutError
            self._sock.settimeout(left_s)
            got_bytes = self._sock.recv_into(self._connection.get_buffer(65536))
            if got_bytes == 0:
                raise ProtocolError("it closed the connection without a word")
            for event in self._connection.buffer_updated(got_bytes):
                if isinstance(event, Closed):
                    self._ended = event.reason  # told once what came before it is taken
                elif isinstance(event.message, Ping):
                    self._connection.send(Pong(event.message.token))
                else:
                    self._messages.append(event.message)
            self._flush()
        return self._messages.pop(0)


def _greet(
    sock: socket.socket,
    facts: HubFacts,
    credentials: Credentials,
    identity: str,
    end_s: float,
    now_s: Callable[[], float],
) -> HubFacts:
    """Raises ssl.SSLError: in TLS 1.3 the hub refuses a certificate after the client's part of the handshake."""
    talk = _Talk(sock, now_s)
    began_s = now_s()
    end_of_hello_s = min(end_s, began_s + DOCTOR_HELLO_TIMEOUT_S)
    try:
        greeting = credentials.greeting(Hello(WIRE_VERSIONS, facts.dataset or NO_DATASET, identity, os.urandom(16)))
        talk.send(greeting.hello)
        answer = talk.receive(end_of_hello_s)
        if isinstance(answer, Challenge):
            talk.send(greeting.answer(answer))
            answer = talk.receive(end_of_hello_s)
        if isinstance(answer, Welcome):
            greeting.welcomed()
    except TimeoutError:
        return replace(facts, state=HubState.SILENT, said=f"nothing within {DOCTOR_HELLO_TIMEOUT_S:g} s")
    except AuthenticationFailed as error:
        return replace(facts, state=HubState.ASKS_WHO, said=str(error))
    except HeadraceError as error:
        return replace(facts, state=HubState.OTHER_PROTOCOL, said=str(error))
    except ssl.SSLError:
        raise
    except OSError as error:
        return replace(facts, state=HubState.SILENT, said=error.strerror or str(error))
    if isinstance(answer, Error):
        return _refused(facts, from_wire(answer.code, answer.message), now_s() - began_s)
    if isinstance(answer, Goodbye):
        return replace(facts, state=HubState.SENT_AWAY, said=answer.reason)
    assert isinstance(answer, Welcome)  # the connection lets nothing else through here
    facts = replace(
        facts,
        state=HubState.WELCOMED,
        wire_version=answer.version,
        head_revision=answer.head_revision,
        send_buffer_bytes=answer.send_buffer_bytes,
    )
    return replace(facts, pings_s=tuple(_pings(talk, end_s, now_s)))


def _refused(facts: HubFacts, error: HeadraceError, took_s: float) -> HubFacts:
    if isinstance(error, UnknownDataset):
        said = str(error) if facts.dataset else str(error).replace(f"no dataset {NO_DATASET!r} here; ", "")
        return replace(facts, state=HubState.NAMED_NO_DATASET, said=said, pings_s=(took_s,))
    if isinstance(error, (VersionMismatch, ProtocolError)):
        return replace(facts, state=HubState.OTHER_PROTOCOL, said=str(error))
    if isinstance(error, AuthenticationFailed):
        return replace(facts, state=HubState.ASKS_WHO, said=str(error))
    if isinstance(error, NotAllowed):
        return replace(facts, state=HubState.NOT_ALLOWED, said=str(error), pings_s=(took_s,))
    return replace(facts, state=HubState.SENT_AWAY, said=str(error))


def _pings(talk: _Talk, end_s: float, now_s: Callable[[], float]) -> Iterator[float]:
    """Round trips one after another; what was measured counts even if the hub falls silent meanwhile."""
    last_s, enough_s = 0.0, now_s() + DOCTOR_PINGS_S
    with contextlib.suppress(OSError, HeadraceError):
        for token in range(1, DOCTOR_PINGS + 1):
            began_s = now_s()
            if token > 1 and began_s + last_s > enough_s:
                break
            talk.send(Ping(token))
            while not (isinstance(answer := talk.receive(end_s), Pong) and answer.token == token):
                pass  # heartbeats and the like
            last_s = now_s() - began_s
            yield last_s
        talk.send(Goodbye("doctor has seen enough"))


def least_rtt_s(facts: HubFacts) -> float | None:
    """The best PING: queues and busy hosts only ever add. Without any, the time of dialling, which may end at a proxy."""
    return min(facts.pings_s) if facts.pings_s else facts.connect_s
