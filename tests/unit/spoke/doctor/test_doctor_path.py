"""What doctor says about a path, with exact numbers, on made-up facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spoke.doctor.examine import Asked, judged, path_of
from spoke.doctor.facts import Facts, HubFacts, HubState, Source
from spoke.doctor.findings import Level
from spoke.hub_client import sizing
from tests.unit.spoke.doctor.doctor_support import HUB, MIB, SOUND, TCP, UNMOUNTED, of, status, with_path


def with_tcp(facts: Facts = SOUND, **changes: object) -> Facts:
    return replace(facts, tcp=replace(facts.tcp, **changes))  # type: ignore[arg-type]


def with_hub(facts: Facts = SOUND, **changes: object) -> Facts:
    return replace(facts, hub=replace(facts.hub, **changes))  # type: ignore[arg-type]


def test_a_sound_host_on_a_sound_path_has_nothing_to_say() -> None:
    assert {finding.level for finding in judged(SOUND)} == {Level.OK}
    assert {finding.level for finding in judged(UNMOUNTED)} == {Level.OK}


# --- buffers -------------------------------------------------------------------------------------------------


def test_stock_buffers_hold_one_gigabit_at_60_ms() -> None:
    found = of(with_path(0.06, 1), "tcp buffers")
    assert found.level is Level.OK
    assert "1 Gbit/s (given) x 60 ms = 7.15 MiB in flight" in found.seen
    assert "one link holds 2.8 MiB (the hub's tcp_wmem)" in found.seen
    assert "this path needs 4 links of that, the spoke opens 12" in found.seen
    assert found.figures["cap_bytes_per_s"] * 8 / 1e9 == pytest.approx(4.6976, abs=1e-4)
    assert found.mend == ""


def test_stock_buffers_cap_ten_gigabit_at_250_ms_and_the_mending_lifts_it() -> None:
    found = of(with_path(0.25, 10), "tcp buffers")
    assert found.level is Level.PROBLEM
    assert "this path needs 160 links of that, the spoke opens 32" in found.seen
    assert found.cost == "the kernels' limits cap it at 3.01 Gbit/s, 30.1 % of the link"
    assert 'here: sysctl -w net.ipv4.tcp_rmem="4096 131072 67108864"' in found.mend
    assert 'at the hub: sysctl -w net.ipv4.tcp_wmem="4096 65536 67108864"' in found.mend
    mended = replace(
        with_path(0.25, 10),
        tcp=replace(TCP, rmem_bytes=(4096, 131072, 64 * MIB)),
        hub=replace(HUB, send_buffer_bytes=64 * MIB),
    )
    assert of(mended, "tcp buffers").level is Level.OK


def test_the_mending_is_as_large_as_the_path_wants() -> None:
    found = of(with_path(0.9, 10), "tcp buffers")
    # 1.5 x 1.25 GB/s x 0.9 s over 32 links = 52.7 MB of window each: 105 MB receiving, 75 MB sending.
    assert '"4096 131072 134217728"' in found.mend
    assert '"4096 65536 134217728"' in found.mend


def test_half_of_the_link_is_a_problem_and_less_than_all_a_warning() -> None:
    at = {gbit: of(with_path(0.06, gbit), "tcp buffers") for gbit in (8, 12, 13.5, 30)}
    assert {gbit: found.level for gbit, found in at.items()} == {
        8: Level.OK,
        12: Level.NOTE,  # 12.5 Gbit/s: all of it, and nothing to spare
        13.5: Level.WARNING,
        30: Level.PROBLEM,
    }
    assert "1.5 times the link" in at[12].cost


def test_only_the_side_that_is_short_is_to_be_raised() -> None:
    wide_here = with_tcp(with_path(0.25, 10), rmem_bytes=(4096, 131072, 64 * MIB))
    assert of(wide_here, "tcp buffers").mend.startswith("at the hub: ")
    wide_there = with_hub(with_path(0.25, 10), send_buffer_bytes=64 * MIB)
    found = of(wide_there, "tcp buffers")
    assert "this host's tcp_rmem" in found.seen
    assert found.mend == 'here: sysctl -w net.ipv4.tcp_rmem="4096 131072 67108864"'


def test_what_keeps_a_window_small_is_named() -> None:
    unscaled = of(with_tcp(with_path(0.06, 1), window_scaling=0), "tcp buffers")
    assert unscaled.level is Level.PROBLEM
    assert "tcp_window_scaling is 0" in unscaled.seen
    assert unscaled.figures["cap_bytes_per_s"] == 32 * 65535 / 0.06
    assert "sysctl -w net.ipv4.tcp_window_scaling=1" in unscaled.mend
    fixed = of(with_tcp(with_path(0.06, 1), moderate_rcvbuf=0), "tcp buffers")
    assert "tcp_moderate_rcvbuf is 0" in fixed.seen
    assert fixed.figures["window_bytes"] == 131072 * sizing.RECEIVE_WINDOW_SHARE


def test_links_set_too_low_are_told() -> None:
    found = of(with_path(0.06, 1, bulk_links=2), "tcp buffers")
    assert found.level is Level.WARNING
    assert "needs 4 links of that, set are 2" in found.seen
    assert "leave links unset: 12 would be opened" in found.mend


def test_an_unknown_hub_is_taken_for_stock_and_an_unknown_round_trip_for_nothing() -> None:
    assert "assumed stock" in of(with_hub(send_buffer_bytes=0), "tcp buffers").seen
    unknown = with_path(None, 1, facts=replace(SOUND, hub=HubFacts()))
    names = {finding.check for finding in judged(unknown)}
    assert not names & {"tcp buffers", "tcp memory", "asked ahead"}
    assert of(unknown, "round trip").level is Level.NOTE


def test_tcp_memory_of_a_small_host() -> None:
    assert of(SOUND, "tcp memory").level is Level.OK
    # 10 Gbit/s x 250 ms x 1.5 / 0.5 = 937.5 MB of buffers against 100,000 pages.
    found = of(with_tcp(with_path(0.25, 10), mem_pages=(50_000, 100_000, 150_000)), "tcp memory")
    assert found.level is Level.WARNING
    assert found.figures["share"] == pytest.approx(100_000 * 4096 * 0.5 / 312.5e6)
    assert '"228882 457764 686646"' in found.mend


def test_what_a_spoke_asks_ahead_bounds_very_long_paths() -> None:
    assert of(with_path(0.06, 10), "asked ahead").level is Level.OK
    found = of(with_path(0.9, 10), "asked ahead")
    assert found.level is Level.WARNING
    assert "256 MiB ahead at most: 2.39 Gbit/s" in found.seen
    assert found.figures["share"] == pytest.approx(256 * MIB / 0.9 / 1.25e9)


# --- sending, segments ---------------------------------------------------------------------------------------


def test_no_bbr_is_a_note_here_with_what_it_would_cost_at_the_hub() -> None:
    found = of(with_hub(with_tcp(bbr_refused="the module tcp_bbr is not loaded"), mtu_bytes=1500), "congestion control")
    assert found.level is Level.NOTE
    # sqrt(1.5 / 0.001) = 38.7 segments of 1,448 bytes in 60 ms.
    assert found.figures["cubic_link_bytes_per_s"] * 8 / 1e6 == pytest.approx(7.477, abs=1e-3)
    assert "7.48 Mbit/s at this distance, 32 of them 23.9 % of the link" in found.cost
    assert "modprobe tcp_bbr" in found.mend


def test_an_idle_restart_costs_round_trips_unless_bbr_is_there() -> None:
    assert of(with_tcp(slow_start_after_idle=1), "idle restart").level is Level.OK
    found = of(with_hub(with_tcp(slow_start_after_idle=1, bbr_refused="no"), mtu_bytes=1500), "idle restart")
    assert found.level is Level.NOTE
    # 7.5 MB over 8 links is 937,500 bytes; ten segments are 14,480: seven doublings.
    assert (found.figures["round_trips"], found.figures["regrow_s"]) == (6, pytest.approx(0.36))


def test_headers_of_small_packets() -> None:
    found = of(with_hub(mtu_bytes=1500), "mtu")
    assert found.level is Level.NOTE
    assert found.figures["payload_share"] == pytest.approx(1448 / 1538)
    assert "headers take 58.5 Mbit/s, at 81,274 packets/s; 8,500 bytes would give 4.8 % of the link back" in found.cost


def test_large_packets_without_probing_may_hang() -> None:
    assert of(with_tcp(mtu_probing=0), "mtu").level is Level.WARNING
    assert of(with_tcp(with_hub(mtu_bytes=1500), mtu_probing=0), "mtu").level is Level.NOTE
    assert of(with_tcp(with_hub(mtu_bytes=65535, is_loopback=True), mtu_probing=0), "mtu").level is Level.OK


def test_no_sack() -> None:
    found = of(with_tcp(sack=0), "tcp sack")
    assert (found.level, "60 ms" in found.cost) == (Level.WARNING, True)


# --- the hub -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (HubState.NO_NAME, "name service"),
        (HubState.REFUSED, "start headrace-hub"),
        (HubState.UNREACHABLE, "security group"),
        (HubState.SILENT, "stopped or stuck"),
        (HubState.OTHER_PROTOCOL, "--listen"),
        (HubState.SENT_AWAY, "log"),
        (HubState.NAMED_NO_DATASET, "dataset's name"),
    ],
)
def test_a_hub_that_cannot_be_used_is_a_problem_with_a_remedy(state: HubState, word: str) -> None:
    found = of(with_hub(state=state, said="what it said"), "hub")
    assert found.level is Level.PROBLEM
    assert word in found.mend
    assert "10.0.1.5:7420" in found.seen


def test_a_hub_asked_for_no_dataset_names_those_it_has() -> None:
    found = of(with_hub(state=HubState.NAMED_NO_DATASET, dataset="", said="served: c4, pile"), "hub")
    assert (found.level, found.mend) == (Level.NOTE, "give --dataset NAME")
    assert "served: c4, pile" in found.seen


def test_a_hub_that_asks_who_is_there_is_a_problem_unless_it_is_only_unknown_what_the_mount_shows() -> None:
    asking = with_hub(state=HubState.ASKS_WHO, said="this hub speaks TLS only")
    assert asking.mount is not None
    found = of(asking, "hub")
    assert found.level is Level.PROBLEM
    assert "no certificate or token was given to this end" in found.seen
    assert "this hub speaks TLS only" in found.seen
    silent = replace(asking, mount=replace(asking.mount, status=None))
    assert of(silent, "hub").level is Level.NOTE
    shown = replace(silent, hub=replace(asking.hub, shown="certificate /tls.pem"))
    assert of(shown, "hub").level is Level.PROBLEM
    assert "(certificate /tls.pem was shown)" in of(shown, "hub").seen


@pytest.mark.parametrize(("days", "level"), [(-1.0, Level.PROBLEM), (3.0, Level.WARNING), (80.0, Level.OK)])
def test_a_certificate_that_runs_out(days: float, level: Level) -> None:
    found = of(with_hub(shown="certificate /tls.pem", certificate_left_s=days * 86_400), "certificate")
    assert found.level is level
    assert f"{abs(days)} days" in found.seen


def test_a_queue_on_the_way_is_told() -> None:
    found = of(with_hub(pings_s=(0.06, 0.14, 0.15)), "round trip")
    assert found.level is Level.NOTE
    assert "waits 80 ms more than the path takes" in found.cost


def test_a_proxy_on_the_way_is_told() -> None:
    found = of(with_hub(connect_s=0.0005), "round trip")
    assert (found.level, "dialling took 0.5 ms" in found.seen) == (Level.NOTE, True)
    assert path_of(Asked(), replace(HUB, connect_s=0.0005), None).rtt_s == 0.0600
    assert path_of(Asked(), replace(HUB, pings_s=()), None).rtt_s == 0.0604


def test_what_came_lately_is_told_beside_what_is_judged_by() -> None:
    assert of(SOUND, "rate").seen == "up to 720 Mbit/s came lately; judged by 1 Gbit/s (given)"


def test_where_round_trip_and_rate_come_from() -> None:
    told = Asked(rtt_s=0.2, rate_bytes_per_s=5e8)
    assert path_of(told, HUB, status()).rtt_s == 0.2
    assert path_of(told, HUB, None).rate_source is Source.GIVEN
    measured = path_of(Asked(), HUB, status(hub__rate_bytes_per_s=2e8, settings__links={"value": 5}))
    assert (measured.rtt_s, measured.rtt_source) == (0.0600, Source.MEASURED)
    assert (measured.rate_bytes_per_s, measured.rate_source, measured.bulk_links) == (2e8, Source.SPOKE, 5)
    busy = path_of(Asked(), replace(HUB, pings_s=(0.3,), connect_s=0.2), status())
    assert (busy.rtt_s, busy.rtt_source) == (0.061, Source.SPOKE)
    nothing = path_of(Asked(), HubFacts(), None)
    assert (nothing.rtt_s, nothing.rate_bytes_per_s, nothing.rate_source) == (None, 125e6, Source.ASSUMED)
    idle = path_of(Asked(), HUB, status(hub__rate_bytes_per_s=1e3))
    assert (idle.rate_bytes_per_s, idle.rate_source) == (125e6, Source.ASSUMED)
