"""Judging the way to the hub: reachability, round trip, and what the kernel's TCP limits let through. Pure: facts in, findings out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import median

from common import limits
from common.units import format_rate, format_size
from spoke.doctor import arithmetic
from spoke.doctor.facts import Facts, HubState, Source, TcpFacts
from spoke.doctor.findings import Finding, Level
from spoke.hub_client import sizing

SHARE_GOOD, SHARE_PROBLEM = 0.95, 0.5
"""Of the link: below the first a warning, below the second a problem."""

_LOSS = 0.001
"""The random loss for which congestion control is compared."""

_QUEUE_MIN_S = 0.005
_JUMBO_BYTES, _USUAL_MTU_BYTES = 8_000, 1_500

_CACHED_GOES_ON = "cached data, ls and stat are served; a read of anything else waits for the read timeout and fails"


def milliseconds(time_s: float) -> str:
    return f"{time_s * 1000:.3g} ms"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _level_of(share: float) -> Level:
    if share >= SHARE_GOOD:
        return Level.OK
    return Level.WARNING if share >= SHARE_PROBLEM else Level.PROBLEM


# --- the hub -----------------------------------------------------------------------------------------------


def check_hub(facts: Facts) -> Finding | None:
    """Does it take connections, speak our protocol, and have the dataset?"""
    hub = facts.hub
    where = hub.address
    match hub.state:
        case HubState.NOT_ASKED:
            return None
        case HubState.WELCOMED:
            connected = f", connected in {milliseconds(hub.connect_s)}" if hub.connect_s is not None else ""
            connected += f", {hub.shown} shown and taken" if hub.shown else ""
            return Finding(
                "hub",
                Level.OK,
                f"{where} serves {hub.dataset!r} at revision {hub.head_revision}, protocol {hub.wire_version}{connected}",
            )
        case HubState.NAMED_NO_DATASET if not hub.dataset:
            return Finding(
                "hub",
                Level.NOTE,
                f"{where} answers: {hub.said}",
                "its kernel's send buffer is not known without a dataset; a stock kernel's is assumed",
                "give --dataset NAME",
            )
        case HubState.NAMED_NO_DATASET:
            return _unusable(f"{where} answers: {hub.said}", "correct the dataset's name, or serve it at the hub")
        case HubState.NO_NAME:
            return _unusable(f"{where}: {hub.said}", "correct the host name, or name service on this host")
        case HubState.REFUSED:
            return _unusable(
                f"{where} refuses connections: nothing listens there",
                "start headrace-hub there, and look at its --listen address and port",
            )
        case HubState.UNREACHABLE:
            return _unusable(
                f"{where} does not answer: {hub.said}",
                "let TCP to this port through (security group, firewall, route, peering), both ways",
            )
        case HubState.SILENT:
            return _unusable(
                f"{where} takes connections and does not answer HELLO: {hub.said}",
                "the hub's process is stopped or stuck, or its host is overloaded: look at its log, restart it",
            )
        case HubState.OTHER_PROTOCOL:
            return _unusable(
                f"what answers at {where} does not speak this protocol: {hub.said}",
                "give the hub's --listen address (not its metrics port); upgrade the older end if it is the hub",
            )
        case HubState.ASKS_WHO if not hub.shown and _is_mount_unknown(facts):
            return Finding(
                "hub",
                Level.NOTE,
                f"{where} asks who this is, and what the mount shows is not known: {hub.said}",
                "dataset, protocol and round trips of PINGs were not looked at",
                f"give doctor what the mount was given: {_GIVE}",
            )
        case HubState.ASKS_WHO:
            shown = f" ({hub.shown} was shown)" if hub.shown else ", and no certificate or token was given to this end"
            return _unusable(
                f"{where} and this spoke do not come together: {hub.said}{shown}",
                f"docs/security.md says what each end needs; give mount and doctor {_GIVE}",
            )
        case HubState.NOTHING_TO_SHOW:
            return _unusable(
                f"what this spoke should show {where} cannot be used: {hub.said}",
                "mend the file that is named; a running mount takes the new one by itself",
            )
        case HubState.NOT_ALLOWED:
            return _unusable(
                f"{where} knows this spoke and refuses it: {hub.said}",
                "at the hub: name this identity, and the dataset, in [identities] of its configuration (docs/security.md)",
            )
        case HubState.SENT_AWAY:
            return _unusable(f"{where} answers HELLO with: {hub.said}", "see the hub's log")


_GIVE = "--tls-cert, --tls-key and --tls-ca, or --token-file, or the --config in which they stand"


def _is_mount_unknown(facts: Facts) -> bool:
    return facts.mount is not None and facts.mount.is_mounted and facts.mount.status is None


def check_certificate(facts: Facts) -> Finding | None:
    """How long is the certificate good that this spoke shows?"""
    left_s = facts.hub.certificate_left_s
    if left_s is None:
        return None
    figures = {"certificate_left_s": left_s}
    days = f"{abs(left_s) / 86_400:.1f} days"
    if left_s <= 0:
        seen = f"{facts.hub.shown} expired {days} ago"
        return Finding("certificate", Level.PROBLEM, seen, _CACHED_GOES_ON, _RENEW, figures)
    if left_s < limits.CERTIFICATE_WARN_S:
        cost = "then the hub refuses this spoke"
        return Finding("certificate", Level.WARNING, f"{facts.hub.shown} expires in {days}", cost, _RENEW, figures)
    return Finding("certificate", Level.OK, f"{facts.hub.shown} is good for {days}", figures=figures)


_RENEW = "put a new certificate and key in place of the old files; a running mount takes them by itself"


def _unusable(seen: str, mend: str) -> Finding:
    return Finding("hub", Level.PROBLEM, seen, _CACHED_GOES_ON, mend)


def check_round_trip(facts: Facts) -> Finding | None:
    """Is there a queue in the way that a demand read would wait in?"""
    path, pings_s = facts.path, facts.hub.pings_s
    if path.rtt_s is None:
        return Finding(
            "round trip",
            Level.NOTE,
            "not known",
            "what the kernel's limits cost on this path is not judged",
            "give --rtt, for example 60ms, or a hub that answers",
        )
    figures = {"rtt_s": path.rtt_s}
    if not pings_s:
        return Finding("round trip", Level.OK, f"{milliseconds(path.rtt_s)} ({path.rtt_source.value})", figures=figures)
    least_s, middle_s, most_s = min(pings_s), median(pings_s), max(pings_s)
    seen = f"{len(pings_s)} pings: {milliseconds(least_s)} at least, {milliseconds(middle_s)} median, {milliseconds(most_s)} at most"
    if path.rtt_source is not Source.MEASURED:
        seen = f"{milliseconds(path.rtt_s)} ({path.rtt_source.value}); {seen}"
    queue_s = middle_s - path.rtt_s
    figures |= {"ping_median_s": middle_s, "ping_min_s": least_s}
    if queue_s > max(_QUEUE_MIN_S, path.rtt_s / 2):
        return Finding(
            "round trip",
            Level.NOTE,
            seen,
            f"something queues: a read that needs the hub waits {milliseconds(queue_s)} more than the path takes",
            "if the spoke fills the link, that is its traffic; else look for other traffic, or for a busy hub host",
            figures,
        )
    connect_s = facts.hub.connect_s
    if connect_s is not None and least_s > max(2 * connect_s, connect_s + _QUEUE_MIN_S):
        return Finding(
            "round trip",
            Level.NOTE,
            f"{seen}; dialling took {milliseconds(connect_s)}",
            "something nearer ends TCP (a proxy, a load balancer), or the hub's process is slow: what its kernel and route "
            "allow beyond is not seen from here",
            "dial the hub itself where that can be; else look at the hub's CPU",
            {**figures, "connect_s": connect_s},
        )
    return Finding("round trip", Level.OK, seen, figures=figures)


def check_rate(facts: Facts) -> Finding | None:
    """What has really come through, beside the rate that the path is judged by."""
    status = facts.mount.status if facts.mount is not None else None
    if status is None or not status["hub"]["rate_bytes_per_s"]:
        return None
    seen = status["hub"]["rate_bytes_per_s"]
    judged = f"judged by {format_rate(facts.path.rate_bytes_per_s)} ({facts.path.rate_source.value})"
    return Finding(
        "rate", Level.OK, f"up to {format_rate(seen)} came lately; {judged}", figures={"seen_bytes_per_s": seen}
    )


# --- what the kernels' limits let through ------------------------------------------------------------------


def check_buffers(facts: Facts) -> Finding | None:
    """Rate x round trip against links x window."""
    path, tcp = facts.path, facts.tcp
    receive_bytes = _receive_bytes(tcp)
    if path.rtt_s is None or receive_bytes is None:
        return None
    send_bytes = facts.hub.send_buffer_bytes or sizing.STOCK_SEND_BYTES
    found = arithmetic.carried(path.rtt_s, path.rate_bytes_per_s, receive_bytes, send_bytes, bulk_links=path.bulk_links)
    send_holds = sizing.SEND_WINDOW_SHARE * send_bytes < sizing.RECEIVE_WINDOW_SHARE * receive_bytes
    narrow = "the hub's tcp_wmem" if send_holds else _receive_reason(tcp)
    assumed = "" if facts.hub.send_buffer_bytes else ", the hub's buffers assumed stock"
    seen = (
        f"{format_rate(path.rate_bytes_per_s)} ({path.rate_source.value}) x {milliseconds(path.rtt_s)} = "
        f"{format_size(found.in_flight_bytes)} in flight; one link holds {format_size(found.window_bytes)} "
        f"({narrow}{assumed}); this path needs {found.wanted_links} links of that, "
        f"{'set are' if path.bulk_links else 'the spoke opens'} {found.links}"
    )
    figures = {
        "in_flight_bytes": found.in_flight_bytes,
        "window_bytes": found.window_bytes,
        "wanted_links": found.wanted_links,
        "links": found.links,
        "share": found.share,
    }
    if not math.isfinite(found.cap_bytes_per_s):
        return Finding("tcp buffers", Level.OK, seen, figures=figures)
    figures["cap_bytes_per_s"] = found.cap_bytes_per_s
    cost = f"the kernels' limits cap it at {format_rate(found.cap_bytes_per_s)}, {percent(found.share)} of the link"
    level = _level_of(found.share)
    if level is Level.OK and found.cap_bytes_per_s < sizing.SPARE * path.rate_bytes_per_s:
        level = Level.NOTE
        cost += f"; less than {sizing.SPARE:g} times the link leaves little to repair losses with"
    return Finding("tcp buffers", level, seen, cost, _buffers_mend(facts, receive_bytes, send_bytes, level), figures)


def _receive_bytes(tcp: TcpFacts) -> int | None:
    if tcp.rmem_bytes is None:
        return None
    return arithmetic.receive_limit_bytes(
        tcp.rmem_bytes, autotuned=tcp.moderate_rcvbuf != 0, window_scaling=tcp.window_scaling != 0
    )


def _receive_reason(tcp: TcpFacts) -> str:
    if tcp.window_scaling == 0:
        return "tcp_window_scaling is 0"
    return "tcp_moderate_rcvbuf is 0" if tcp.moderate_rcvbuf == 0 else "this host's tcp_rmem"


def _buffers_mend(facts: Facts, receive_bytes: int, send_bytes: int, level: Level) -> str:
    path, tcp = facts.path, facts.tcp
    if level is Level.OK or path.rtt_s is None:
        return ""
    steps = [
        f"here: sysctl -w net.ipv4.{name}=1"
        for name, value in (("tcp_window_scaling", tcp.window_scaling), ("tcp_moderate_rcvbuf", tcp.moderate_rcvbuf))
        if value == 0
    ]
    default = arithmetic.carried(path.rtt_s, path.rate_bytes_per_s, receive_bytes, send_bytes)
    if path.bulk_links and default.links > path.bulk_links:
        steps.append(f"leave links unset: {default.links} would be opened")
    want_receive, want_send = arithmetic.buffers_for(path.rtt_s, path.rate_bytes_per_s)
    rmem = tcp.rmem_bytes
    if rmem is not None and rmem[2] < want_receive:
        largest = max(want_receive, arithmetic.BUFFER_MAX_BYTES)
        steps.append(f'here: sysctl -w net.ipv4.tcp_rmem="{rmem[0]} {rmem[1]} {largest}"')
    if send_bytes < want_send:
        steps.append(
            f'at the hub: sysctl -w net.ipv4.tcp_wmem="4096 65536 {max(want_send, arithmetic.BUFFER_MAX_BYTES)}"'
        )
    return "; ".join(steps)


def check_tcp_memory(facts: Facts) -> Finding | None:
    """All sockets of the host share tcp_mem; near its second number the kernel stops buffers from growing."""
    tcp, rtt_s = facts.tcp, facts.path.rtt_s
    if tcp.mem_pages is None or rtt_s is None:
        return None
    pressure_bytes = tcp.mem_pages[1] * tcp.page_bytes
    wanted_bytes = sizing.SPARE * facts.path.rate_bytes_per_s * rtt_s / sizing.RECEIVE_WINDOW_SHARE
    figures = {"pressure_bytes": pressure_bytes, "wanted_bytes": wanted_bytes}
    seen = f"the kernel holds buffers back from {format_size(pressure_bytes)} on (tcp_mem), all sockets together"
    if wanted_bytes <= pressure_bytes:
        return Finding("tcp memory", Level.OK, seen, figures=figures)
    share = min(1.0, pressure_bytes * sizing.RECEIVE_WINDOW_SHARE / (facts.path.rate_bytes_per_s * rtt_s))
    pages = math.ceil(wanted_bytes / tcp.page_bytes)
    return Finding(
        "tcp memory",
        max(Level.NOTE, _level_of(share)),
        seen,
        f"this path wants {format_size(wanted_bytes)}; under pressure it gets {percent(share)} of the link",
        f'sysctl -w net.ipv4.tcp_mem="{pages} {2 * pages} {3 * pages}"',
        {**figures, "share": share},
    )


def check_own_limit(facts: Facts) -> Finding | None:
    """What a spoke asks ahead at most, whatever the kernel allows."""
    path = facts.path
    if not path.rtt_s:
        return None
    cap = limits.PREFETCH_MAX_OUTSTANDING_BYTES / path.rtt_s
    share = min(1.0, cap / path.rate_bytes_per_s)
    figures = {"cap_bytes_per_s": cap, "share": share}
    seen = f"a spoke asks {format_size(limits.PREFETCH_MAX_OUTSTANDING_BYTES)} ahead at most"
    if share == 1.0:
        return Finding("asked ahead", Level.OK, f"{seen}, enough for this path", figures=figures)
    seen += f": {format_rate(cap)} at this distance"
    return Finding(
        "asked ahead",
        max(Level.NOTE, min(_level_of(share), Level.WARNING)),
        seen,
        f"prefetch reaches {percent(share)} of the link; demand reads of many readers add to it",
        "no setting raises it; use a second spoke with a cache of its own for more",
        figures,
    )


def check_sack(facts: Facts) -> Finding | None:
    if facts.tcp.sack != 0:
        return None
    wait = f" of {milliseconds(facts.path.rtt_s)}" if facts.path.rtt_s is not None else ""
    return Finding(
        "tcp sack",
        Level.WARNING,
        "tcp_sack is 0: a receiver cannot say which packets it lacks",
        f"one of several losses in a window is repaired a round trip{wait}",
        "sysctl -w net.ipv4.tcp_sack=1, on both hosts",
    )


# --- sending: the hub's host, which this command cannot see; the same settings usually stand on both -------


def check_congestion_control(facts: Facts) -> Finding | None:
    """The hub asks for BBR on its own sockets; whether this kernel would grant it."""
    tcp, path = facts.tcp, facts.path
    if tcp.bbr_refused is None:
        return None
    if not tcp.bbr_refused:
        qdisc = f", default qdisc {tcp.default_qdisc}" if tcp.default_qdisc else ""
        return Finding(
            "congestion control", Level.OK, f"bbr can be had (default here: {tcp.congestion_control}{qdisc})"
        )
    cost, figures = "a spoke sends little, so here it costs nothing; it counts where the hub runs", {}
    if path.rtt_s:
        segment_bytes = arithmetic.payload_bytes(facts.hub.mtu_bytes or _USUAL_MTU_BYTES, is_ipv6=facts.hub.is_ipv6)
        one = arithmetic.cubic_bytes_per_s(segment_bytes, path.rtt_s, _LOSS)
        links = path.bulk_links or limits.BULK_LINKS_MAX
        share = min(1.0, links * one / path.rate_bytes_per_s)
        cost += (
            f": with {_LOSS:.1%} loss a CUBIC connection carries {format_rate(one)} at this distance, "
            f"{links} of them {percent(share)} of the link"
        )
        figures = {"cubic_link_bytes_per_s": one, "cubic_share": share}
    available = f" (there are {', '.join(tcp.available)})" if tcp.available else ""
    return Finding(
        "congestion control",
        Level.NOTE,
        f"bbr cannot be had here: {tcp.bbr_refused}{available}",
        cost,
        "at the hub: modprobe tcp_bbr; sysctl -w net.ipv4.tcp_congestion_control=bbr net.core.default_qdisc=fq",
        figures,
    )


def check_idle(facts: Facts) -> Finding | None:
    """Does a connection fall back to its first window after a pause?"""
    tcp, path = facts.tcp, facts.path
    if tcp.slow_start_after_idle is None:
        return None
    if tcp.slow_start_after_idle == 0:
        return Finding("idle restart", Level.OK, "tcp_slow_start_after_idle is 0")
    if tcp.bbr_refused == "":
        return Finding("idle restart", Level.OK, "tcp_slow_start_after_idle is 1, which bbr does not heed")
    cost, figures = "counts where the hub runs: after a pause its connections start slowly again", {}
    receive_bytes = _receive_bytes(tcp)
    if path.rtt_s and receive_bytes is not None:
        links = arithmetic.carried(
            path.rtt_s, path.rate_bytes_per_s, receive_bytes, facts.hub.send_buffer_bytes, bulk_links=path.bulk_links
        ).links
        segment_bytes = arithmetic.payload_bytes(facts.hub.mtu_bytes or _USUAL_MTU_BYTES, is_ipv6=facts.hub.is_ipv6)
        trips = arithmetic.regrow_round_trips(path.rate_bytes_per_s * path.rtt_s / links, segment_bytes)
        cost += f"; {trips} round trips, {milliseconds(trips * path.rtt_s)}, until the link is full"
        figures = {"round_trips": trips, "regrow_s": trips * path.rtt_s}
    return Finding(
        "idle restart",
        Level.NOTE,
        "tcp_slow_start_after_idle is 1, and bbr cannot be had",
        cost,
        "at the hub: sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
        figures,
    )


def check_mtu(facts: Facts) -> Finding | None:
    """What headers take, and whether a smaller hop on the way would be noticed."""
    hub, path, probing = facts.hub, facts.path, facts.tcp.mtu_probing
    if hub.mtu_bytes is None:
        return None
    share = arithmetic.payload_share(hub.mtu_bytes, is_ipv6=hub.is_ipv6)
    packets_per_s = path.rate_bytes_per_s / (hub.mtu_bytes + 38)
    seen = f"{hub.mtu_bytes} bytes on the way to the hub: {percent(share)} of the link is payload"
    figures = {"mtu_bytes": hub.mtu_bytes, "payload_share": share, "packets_per_s": packets_per_s}
    if hub.is_loopback:
        return Finding("mtu", Level.OK, f"{hub.mtu_bytes} bytes, this same host", figures=figures)
    if hub.mtu_bytes > _USUAL_MTU_BYTES and probing == 0:
        return Finding(
            "mtu",
            Level.WARNING,
            f"{seen}; tcp_mtu_probing is 0",
            "if a hop takes less and its ICMP is filtered, names arrive and data hangs for ever",
            "sysctl -w net.ipv4.tcp_mtu_probing=1 on both hosts, and let ICMP 'fragmentation needed' through",
            figures,
        )
    if hub.mtu_bytes < _JUMBO_BYTES:
        gain = arithmetic.payload_share(8_500) - share
        return Finding(
            "mtu",
            Level.NOTE,
            seen,
            f"headers take {format_rate((1 - share) * path.rate_bytes_per_s)}, at {packets_per_s:,.0f} packets/s; "
            f"8,500 bytes would give {percent(gain)} of the link back",
            "raise the MTU on both hosts where the network carries it (a peering between cloud regions: 8,500)",
            figures,
        )
    return Finding("mtu", Level.OK, seen, figures=figures)


_CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    check_hub,
    check_certificate,
    check_round_trip,
    check_rate,
    check_buffers,
    check_tcp_memory,
    check_own_limit,
    check_sack,
    check_congestion_control,
    check_idle,
    check_mtu,
)


def path_findings(facts: Facts) -> Iterator[Finding]:
    """All that is to say about the path, in a fixed order."""
    for check in _CHECKS:
        finding = check(facts)
        if finding is not None:
            yield finding
