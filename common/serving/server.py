"""Listens for spokes and serves them datasets from any sources, under one rate and one set of limits.

Knows who is connected (the fleet view); what a connection says is its session's affair, who is next the scheduler's.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common import limits
from common.errors import AuthenticationFailed, NotAllowed, Overloaded, UnknownDataset
from common.log import SayingLimit, get_logger
from common.runtime import cancel_and_wait
from common.serving.access import Access, Grant
from common.serving.admission import Admission
from common.serving.egress import Egress, Pack, pack_raw
from common.serving.observer import Auditor, NoObserver, Observer
from common.serving.orders import OrderDesk
from common.serving.packing_choice import FAR_ANSWER_S, FAR_RTT_S, PackingChoice
from common.serving.scheduler import ReadAhead, Scheduler
from common.serving.session import Session
from common.serving.source import Source
from common.serving.steering import Steering
from common.serving.turns import SnapshotTurns
from common.serving.weights import Weights
from common.tcp import PathFacts, send_buffer_bytes, tune
from common.tls import Certificates
from common.tls_transport import Tls
from common.token import TokenFile
from common.wire.message_codec import encode
from common.wire.messages import Codec, Error, Hello, Stats

log = get_logger(__name__)

_TLS_ONLY, _ = encode(
    Error(
        AuthenticationFailed.wire_code, "this hub speaks TLS only: mount with --tls-cert, --tls-key and --tls-ca", False
    )
)
"""What a peer hears that begins in the clear."""

RATE_LOOK_S = 1.0
RATE_SPAN_S = 4.0
"""The rates of the fleet view are looked at once a second, and follow within about so long."""


@dataclass(frozen=True, slots=True)
class LinkView:
    """One connection, for people: ``path`` is None where the kernel does not tell."""

    address: str
    sent_bytes: int
    open_requests: int
    path: PathFacts | None


@dataclass(frozen=True, slots=True)
class SpokeView:
    """One spoke of the fleet. ``rate_bytes_per_s``: what was sent lately, over RATE_SPAN_S. ``identity`` and ``stats`` are what it says
    of itself. ``stats_age_s``: None before the first."""

    spoke_id: bytes
    identity: str
    dataset: str
    connected_s: float
    weight: float
    sent_bytes: int
    rate_bytes_per_s: float
    outstanding_bytes: int
    links: tuple[LinkView, ...]
    stats: Mapping[str, float]
    stats_age_s: float | None


@dataclass(slots=True)
class _Spoke:
    since_s: float
    sessions: dict[int, Session] = field(default_factory=dict)
    sent_by_closed_bytes: int = 0
    rate_bytes_per_s: float = 0.0
    measured_bytes: int = 0
    stats: Mapping[str, float] = field(default_factory=dict)
    stats_at_s: float | None = None

    @property
    def sent_bytes(self) -> int:
        return self.sent_by_closed_bytes + sum(session.sent_bytes for session in self.sessions.values())


class Server:
    """``sources``: dataset name to source. ``listen``: host and port (0: any free one, see ``port``); None: only what is adopted.

    ``total_rate_bytes_per_s`` and ``spoke_rate_bytes_per_s``: what leaves for all spokes, and for one; None: no limit.
    ``steer``: each spoke is sent no more than its path carries (:mod:`common.serving.rate_control`).
    ``weights``: a spoke's identity to its share. ``access``: who may have what. ``certificates``: speak TLS, and let in whom
    they believe; ``token``: ask for this one. ``auditor`` hears who did what. ``codecs`` and ``pack``: what DATA may be packed with,
    and by whom. ``orders``: who keeps what spokes learned; None: nobody.
    Use ``start`` and ``close``, or ``async with``. OSError of the listening socket comes out of ``start``.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        listen: tuple[str, int] | None,
        clock: Callable[[], float] = time.monotonic,
        total_rate_bytes_per_s: float | None = None,
        spoke_rate_bytes_per_s: float | None = None,
        weights: Weights | None = None,
        observer: Observer | None = None,
        codecs: Sequence[Codec] = (Codec.RAW,),
        pack: Pack = pack_raw,
        steer: bool = True,
        read_ahead: ReadAhead | None = None,
        access: Access | None = None,
        certificates: Certificates | None = None,
        token: TokenFile | None = None,
        auditor: Auditor | None = None,
        wall_time_s: Callable[[], float] = time.time,
        orders: OrderDesk | None = None,
    ) -> None:
        assert Codec.RAW in codecs
        self.observer: Observer = observer or NoObserver()
        self.codecs = codecs
        rates = [rate for rate in (total_rate_bytes_per_s, spoke_rate_bytes_per_s) if rate is not None]
        self.socket_rate_bytes_per_s = min(rates, default=None)
        scheduler = Scheduler(
            total_rate_bytes_per_s=total_rate_bytes_per_s,
            spoke_rate_bytes_per_s=spoke_rate_bytes_per_s,
            read_ahead=read_ahead,
        )
        self.egress = Egress(scheduler, clock, self.observer, pack)
        self.send_buffer_bytes = send_buffer_bytes()
        self._sources = dict(sources)
        self._listen = listen
        self._clock = clock
        self._weights = weights or Weights()
        self.auditor = auditor
        self.orders = orders
        self.snapshot_turns = SnapshotTurns()
        self.refusal_log = SayingLimit(limits.REFUSALS_LOGGED_PER_S, clock)
        self._access = access or Access()
        self._certificates = certificates
        self._token = token
        self._wall_time_s = wall_time_s
        self._by_identity: dict[str, dict[int, Session]] = {}
        self._link_ids = itertools.count(1)
        self._sessions: dict[int, Session] = {}
        self._half_open: dict[int, Session] = {}  # in the order they came
        self._spokes: dict[tuple[bytes, str], _Spoke] = {}
        self._server: asyncio.Server | None = None
        self._steering = Steering(scheduler, clock, self.socket_rate_bytes_per_s) if steer else None
        self._steering_task: asyncio.Task[None] | None = None
        self._rates_task: asyncio.Task[None] | None = None
        self._closing = False

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        if self._listen is not None:
            self._server = await self._listening(*self._listen)
        if self._steering is not None:
            self._steering_task = asyncio.create_task(self._steering.run(), name="rate of each spoke")
        self._rates_task = asyncio.create_task(self._measure_rates(), name="rates of the fleet view")
        if self._listen is not None:
            log.info("serving", host=self._listen[0], port=self.port, datasets=sorted(self._sources))

    async def _listening(self, host: str, port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: self._secured(Session(self, next(self._link_ids))), host, port, backlog=512, start_serving=False
        )
        for sock in server.sockets:
            tune(sock, bulk_sender=True)  # accepted sockets inherit it, so it holds from their first segment on
        await server.start_serving()
        return server

    async def adopt(self, sock: socket.socket, received: bytes) -> Session:
        """Serve a connection that somebody else accepted, and of which ``received`` was read already. Owns the socket from now on."""
        session = Session(self, next(self._link_ids), received)
        sock.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self._secured(session), sock)
        return session

    def _secured(self, session: Session) -> asyncio.BufferedProtocol:
        if self._certificates is None:
            return session
        return Tls(session, self._certificates.server(), in_the_clear=_TLS_ONLY)

    @property
    def port(self) -> int:
        """The port that was really bound."""
        assert self._server is not None, "start() comes first"
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, say GOODBYE to all, and end everything within about CLOSE_GRACE_S."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        sessions = list(self._sessions.values())
        for session in sessions:
            session.say_goodbye("the server stops")
        await cancel_and_wait(self._steering_task, self._rates_task)
        await self.egress.close()
        closed = asyncio.gather(*(session.wait_closed() for session in sessions))
        try:
            async with asyncio.timeout(limits.CLOSE_GRACE_S + 1):
                await closed
        except TimeoutError:
            for session in sessions:
                session.abort()
            await asyncio.gather(*(session.wait_closed() for session in sessions))

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def limit_total(self, rate_bytes_per_s: float | None) -> None:
        """What may leave for all spokes from now on; None: no limit. Nothing is dropped, what is owed stays owed."""
        self.egress.limit_total(rate_bytes_per_s)

    # --- Host: what sessions ask ------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        self._sessions[session.link_id] = session
        self._half_open[session.link_id] = session
        if self._closing or len(self._sessions) > limits.CONNECTIONS_MAX:
            raise Overloaded(f"{len(self._sessions) - 1} connections are open, no more are taken")
        if len(self._half_open) > limits.CONNECTIONS_HALF_OPEN_MAX:
            self._half_open.pop(next(iter(self._half_open))).drop_half_open()

    def token(self) -> bytes | None:
        return self._token.current() if self._token is not None else None

    def welcome(self, session: Session, hello: Hello, names: Sequence[str]) -> Admission:
        identity, grant = self._access.admit(names, hello.dataset)
        hello = replace(hello, identity=identity)
        source = self._sources.get(hello.dataset)
        if source is None:
            served = ", ".join(sorted(name for name in self._sources if grant.allows(name)))
            raise UnknownDataset(f"no dataset {hello.dataset!r} here; served: {served}")
        mine = self._by_identity.get(identity, {})
        allowed = grant.connections
        if allowed is None and self._certificates is not None:
            allowed = limits.CONNECTIONS_PER_IDENTITY_MAX
        if allowed is not None and len(mine) >= allowed:
            raise Overloaded(f"{identity!r} has {len(mine)} connections, no more are taken")
        connected = sum(
            len(spoke.sessions) for (spoke_id, _), spoke in self._spokes.items() if spoke_id == hello.spoke_id
        )
        if connected >= limits.CONNECTIONS_PER_SPOKE_MAX:
            raise Overloaded(f"this spoke has {connected} connections, no more are taken")
        key = (hello.spoke_id, hello.dataset)
        spoke = self._spokes.get(key)
        if spoke is None:
            spoke = self._spokes[key] = _Spoke(self._clock())
            log.info("spoke connected", identity=hello.identity, address=session.address, dataset=hello.dataset)
        spoke.sessions[session.link_id] = session
        self._half_open.pop(session.link_id, None)
        if self._steering is not None:
            self._steering.joined(session.host_address, hello.spoke_id, session)
        self._by_identity.setdefault(identity, {})[session.link_id] = session
        if grant.rate_bytes_per_s is not None:  # once the egress knows this spoke
            asyncio.get_running_loop().call_soon(self._divide_rate, identity)
        weight = self._access.weight(identity, grant, self._weights)
        return Admission(hello, source, weight, grant.requests is not None)

    def admit_read(self, session: Session) -> None:
        assert session.hello is not None
        identity = session.hello.identity
        grant = self._grant(session)
        scheduler = self.egress.scheduler
        in_flight = sum(scheduler.open_requests(link_id) for link_id in self._by_identity[identity])
        if grant.requests is not None and in_flight >= grant.requests:
            raise Overloaded(f"{identity!r} has {in_flight} READs in flight, no more are taken")

    def _grant(self, session: Session) -> Grant:
        """What holds for a session that was let in; nothing in particular while it is being shut out."""
        try:
            return self._access.grant(session.names)[1]
        except NotAllowed:
            return Grant()

    def _divide_rate(self, identity: str) -> None:
        """The rate of an identity, evenly between its spokes."""
        mine = self._by_identity.get(identity, {}).values()
        spokes = {session.hello.spoke_id: session for session in mine if session.hello is not None}
        for spoke_id, session in spokes.items():
            rate = self._grant(session).rate_bytes_per_s
            share = rate / len(spokes) if rate is not None else None
            self.egress.scheduler.bound_spoke(self._clock(), spoke_id, share)
        self.egress.pump_soon()

    def set_access(self, access: Access) -> None:
        """Holds from now on, for those who are here as well: who may no longer have its dataset is shut out."""
        self._access = access
        for session in list(self._sessions.values()):
            hello = session.hello
            if hello is None or not session.names:
                continue
            try:
                identity, grant = access.admit(session.names, hello.dataset)
            except NotAllowed as error:
                session.shut_out(error)
                continue
            self.egress.scheduler.reweigh(hello.spoke_id, access.weight(identity, grant, self._weights))
        for identity in list(self._by_identity):
            self._divide_rate(identity)

    def heard_stats(self, session: Session, stats: Stats) -> None:
        assert session.hello is not None
        spoke = self._spokes[session.hello.spoke_id, session.hello.dataset]
        spoke.stats = stats.values
        spoke.stats_at_s = self._clock()

    def packing(self, session: Session) -> PackingChoice | None:
        if self._steering is None or session.hello is None:
            return None
        spoke = self._spokes[session.hello.spoke_id, session.hello.dataset]
        answers_s = [each.answer_s for each in spoke.sessions.values() if each.answer_s is not None]
        path = session.path()
        far = (path is not None and path.min_rtt_s >= FAR_RTT_S) or min(answers_s, default=0.0) >= FAR_ANSWER_S
        return self._steering.packing(session.hello.spoke_id, far=far)

    def closed(self, session: Session) -> None:
        self._sessions.pop(session.link_id, None)
        self._half_open.pop(session.link_id, None)
        hello = session.hello
        if hello is None:
            return
        if self._steering is not None:
            self._steering.left(hello.spoke_id, session)
        mine = self._by_identity[hello.identity]
        del mine[session.link_id]
        if not mine:
            del self._by_identity[hello.identity]
        elif self._grant(session).rate_bytes_per_s is not None:
            self._divide_rate(hello.identity)
        key = (hello.spoke_id, hello.dataset)
        spoke = self._spokes[key]
        del spoke.sessions[session.link_id]
        spoke.sent_by_closed_bytes += session.sent_bytes
        if not spoke.sessions:
            del self._spokes[key]
            log.info("spoke disconnected", identity=hello.identity, dataset=hello.dataset)
        self.observer.disconnected(hello.identity)

    # --- the fleet --------------------------------------------------------------------------------------------

    async def _measure_rates(self) -> None:
        at_s = self._clock()
        while True:
            await asyncio.sleep(RATE_LOOK_S)
            self._shut_out_expired()
            elapsed_s, at_s = self._clock() - at_s, self._clock()
            share = min(1.0, elapsed_s / RATE_SPAN_S)
            for spoke in self._spokes.values():
                sent_bytes = spoke.sent_bytes
                seen = (sent_bytes - spoke.measured_bytes) / max(elapsed_s, 1e-3)
                spoke.measured_bytes = sent_bytes
                spoke.rate_bytes_per_s += (seen - spoke.rate_bytes_per_s) * share

    def _shut_out_expired(self) -> None:
        """Who dials again shows the certificate it has by now."""
        now_s = self._wall_time_s()
        for session in [found for found in self._sessions.values() if found.expires_s <= now_s]:
            session.shut_out(
                AuthenticationFailed("the certificate shown at the beginning of this connection has expired")
            )

    @property
    def connections(self) -> int:
        return len(self._sessions)

    def spokes(self) -> list[SpokeView]:
        """Who is connected now, and how it goes."""
        return [self._view(*key, spoke) for key, spoke in self._spokes.items()]

    def _view(self, spoke_id: bytes, dataset: str, spoke: _Spoke) -> SpokeView:
        now_s = self._clock()
        scheduler = self.egress.scheduler
        sessions = list(spoke.sessions.values())
        hello = sessions[0].hello
        return SpokeView(
            spoke_id=spoke_id,
            identity=hello.identity if hello is not None else "",
            dataset=dataset,
            connected_s=now_s - spoke.since_s,
            weight=self._access.weight(hello.identity, self._grant(sessions[0]), self._weights)
            if hello is not None
            else 1.0,
            sent_bytes=spoke.sent_bytes,
            rate_bytes_per_s=spoke.rate_bytes_per_s,
            outstanding_bytes=scheduler.outstanding_bytes(spoke_id),
            links=tuple(
                LinkView(session.address, session.sent_bytes, scheduler.open_requests(session.link_id), session.path())
                for session in sessions
            ),
            stats=spoke.stats,
            stats_age_s=now_s - spoke.stats_at_s if spoke.stats_at_s is not None else None,
        )
