"""What processes count adds up, and never goes back when one of them dies."""

from __future__ import annotations

from common.serving.server import LinkView, SpokeView
from common.tcp import PathFacts
from common.wire.messages import Priority
from hub.counts import IDENTITIES_MAX, Counts
from hub.workers import messages as m
from hub.workers.tables import Totals, counts_table, spoke_table, spoke_view


def report(sent_bytes: int, reads: int = 0, identity: str = "a") -> m.Report:
    counts = Counts()
    counts.connected(identity)
    counts.sent(identity, sent_bytes)
    for _ in range(reads):
        counts.read_done(Priority.PREFETCH, 0.5)
    counts.refused("stale")
    said = m.Report(counts_table(counts), 2 * sent_bytes, sent_bytes, 1, ())
    again = m.unpack(m.pack(said))
    assert isinstance(again, m.Report)
    return again


def test_sums_go_on_over_deaths_and_restarts() -> None:
    totals, own = Totals(), Counts()
    own.refused("overloaded")
    totals.heard(0, report(100, reads=2))
    totals.heard(1, report(10, reads=1, identity="b"))
    totals.heard(0, report(150, reads=3))  # the same process, later
    totals.ended(0)
    totals.ended(0)  # died again before its first report
    totals.heard(0, report(7))
    found = totals.counts(own)
    assert found.sent_bytes == {"a": 157, "b": 10}
    assert found.reads_done == {Priority.DEMAND: 0, Priority.PREFETCH: 4}
    assert found.read_seconds[Priority.PREFETCH] == 2.0
    assert found.refusals == {"stale": 3, "overloaded": 1}
    assert found.connections_total == 3
    assert (totals.raw_bytes, totals.packed_bytes) == (2 * 167, 167)
    assert own.refusals == {"overloaded": 1}, "what this process counts is not touched"


def test_spokes_with_a_series_of_their_own_stay_bounded_over_processes() -> None:
    totals = Totals()
    for index in range(3):
        counts = Counts()
        for number in range(IDENTITIES_MAX):
            counts.sent(f"{index}-{number}", 1)
        totals.heard(index, m.Report(counts_table(counts), 0, 0, 0, ()))
    sums = totals.counts(Counts()).sent_bytes
    assert len(sums) <= IDENTITIES_MAX + 1
    assert sum(sums.values()) == 3 * IDENTITIES_MAX


def test_the_fleet_view_crosses_whole() -> None:
    path = PathFacts(0.06, 0.059, 10**9, 3, 17, 2**40)
    view = SpokeView(
        b"x" * 16,
        "gpu-1",
        "c4",
        12.5,
        2.0,
        10,
        3.5,
        20,
        (LinkView("1.2.3.4:5", 7, 1, path), LinkView("h", 0, 0, None)),
        {"a": 1.0},
        None,
    )
    said = m.unpack(m.pack(m.Report({}, 0, 0, 2, [spoke_table(view)])))
    assert isinstance(said, m.Report)
    assert spoke_view(said.spokes[0]) == view
