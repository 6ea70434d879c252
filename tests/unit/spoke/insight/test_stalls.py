"""Who waited for what: sums and unions, ranks, bounds, waits that go on, processes that are found out late."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common import limits
from spoke.insight.coverage import Coverage
from spoke.insight.stalls import Stalls, Table, in_time, said
from spoke.insight.who import UNKNOWN, Process

RANK_3 = Process(100, 5, "python", "/jobs/a", rank=3)
WORKER = Process(101, 6, "pt_data_worker", "/jobs/a", rank=3, ancestors=(100,))
OTHER = Process(200, 7, "rsync", "/system.slice/backup.service")
KNOWN = {100: RANK_3, 101: WORKER, 200: OTHER, 0: UNKNOWN}


def stalls() -> Stalls:
    return Stalls(KNOWN.get, 0.0)


def wait(accounts: Stalls, task_id: int, path: bytes, from_s: float, to_s: float) -> None:
    accounts.ended(to_s, accounts.began(from_s, task_id, path))


def test_two_readers_of_a_rank_count_each_second_once_in_lost_and_twice_in_stall() -> None:
    accounts = stalls()
    first = accounts.began(10.0, 100, b"train/shard-17")
    second = accounts.began(12.0, 101, b"train/shard-17")
    accounts.ended(20.0, first)
    accounts.ended(30.0, second)
    wait(accounts, 100, b"train/shard-18", 40.0, 61.0)
    facts = accounts.facts(600.0)
    assert (facts["stall_s"], facts["lost_s"], facts["waits"]) == (49.0, 41.0, 3)
    assert [(row["pid"], row["rank"], row["lost_s"]) for row in facts["processes"]] == [(100, 3, 31.0), (101, 3, 18.0)]
    assert facts["groups"] == [{"group": "/jobs/a", "stall_s": 49.0, "lost_s": 41.0, "waits": 3}]
    assert facts["files"][0] == {"path": "train/shard-18", "stall_s": 21.0, "lost_s": 21.0, "waits": 1}
    (rank,) = facts["recent"]["who"]
    assert (rank["who"], rank["lost_s"], rank["waits"]) == ("rank 3", 41.0, 3)
    assert list(said(facts["recent"])) == ["rank 3 lost 41 s of 10 min waiting for shard-18 (21 s), shard-17 (20 s)"]


def test_what_is_longer_ago_than_ten_minutes_is_in_the_totals_alone() -> None:
    accounts = stalls()
    wait(accounts, 200, b"old", 1.0, 31.0)
    wait(accounts, 200, b"new", 700.0, 702.0)
    facts = accounts.facts(705.0)
    assert facts["lost_s"] == 32.0
    assert [row["lost_s"] for row in facts["recent"]["who"]] == [2.0]
    assert 600.0 <= facts["recent"]["span_s"] < 660.0
    assert list(said(facts["recent"])) == ["rsync (pid 200) lost 2 s of 11 min waiting for new"]


def test_a_wait_that_goes_on_shows_and_is_counted_once() -> None:
    accounts = stalls()
    token = accounts.began(0.0, 100, b"f")
    assert accounts.facts(30.0)["lost_s"] == 30.0
    assert accounts.facts(90.0)["processes"][0]["waiting"] == 1
    accounts.ended(125.0, token)
    facts = accounts.facts(130.0)
    assert (facts["lost_s"], facts["stall_s"], facts["waits"], facts["processes"][0]["waiting"]) == (125.0, 125.0, 1, 0)
    assert facts["recent"]["who"][0]["lost_s"] == 125.0


def test_a_process_found_out_late_gets_its_waits_and_pid_0_is_unknown() -> None:
    known: dict[int, Process] = {0: UNKNOWN}
    accounts = Stalls(known.get, 0.0)
    wait(accounts, 100, b"f", 0.0, 1.0)
    wait(accounts, 0, b"f", 2.0, 5.0)
    facts = accounts.facts(6.0)
    assert [(row["pid"], row["name"]) for row in facts["processes"]] == [(None, "unknown")]
    assert facts["lost_s"] == 4.0
    known[100] = RANK_3
    accounts.known(100)
    assert [row["pid"] for row in accounts.facts(6.0)["processes"]] == [None, 100]


def test_a_rank_said_by_a_parent_is_its_workers_too() -> None:
    accounts = Stalls({7: Process(7, 1, "worker", ancestors=(5, 1))}.get, 0.0)
    wait(accounts, 7, b"f", 0.0, 1.0)
    accounts.rank(5, 11)
    wait(accounts, 7, b"f", 2.0, 3.0)
    assert [row["who"] for row in accounts.facts(4.0)["recent"]["who"]] == ["worker (pid 7)", "rank 11"]
    assert accounts.lost_between("rank 11", 2.5, 9.0) == 0.5
    assert accounts.lost_between("rank 12", 0.0, 9.0) == 0.0


def test_rows_are_bounded_and_the_least_joins_the_others() -> None:
    table: Table[int] = Table(3)
    for number in range(1, 6):
        table.add(number, 0.0, float(number), float(number), 1)
    assert sorted(table.rows) == [3, 4, 5]
    assert (table.others, table.others_s) == (2, 3.0)
    accounts = Stalls(lambda task_id: Process(task_id, task_id, "p"), 0.0)
    for number in range(2 * limits.STALL_ROWS_MAX):
        wait(accounts, number + 1, b"f%d" % number, number * 1.0, number + 0.5)
    facts = accounts.facts(1000.0)
    assert len(facts["files"]) == limits.STALLS_SHOWN_MAX
    assert facts["others"]["files"] == limits.STALL_ROWS_MAX


def test_coverage_is_the_length_of_the_union() -> None:
    coverage = Coverage()
    for from_s, to_s in ((0, 2), (1, 3), (5, 6), (0, 10), (20, 20), (12, 13)):
        coverage.add(from_s, to_s)
    assert coverage.total_s == 11
    assert coverage.within(9, 12.5) == 1.5


def test_times_read_as_people_say_them() -> None:
    times = {0.044: "0.044 s", 2.0: "2 s", 41.4: "41 s", 119: "2 min", 600: "10 min", 7500: "2 h 5 min"}
    assert {seconds: in_time(seconds) for seconds in times} == times


def test_ranks_in_the_metrics_are_few_however_many_there_were() -> None:
    many = {task: Process(task, task, "python", "/jobs/a", rank=task) for task in range(1, 100)}
    accounts = Stalls(many.get, 0.0)
    for rank in range(1, 100):
        wait(accounts, rank, b"f", rank * 10.0, rank * 10.0 + rank / 100)
    seen = accounts.lost_by_rank()
    assert len(seen) == limits.STALL_RANKS_MAX
    assert seen["99",] == pytest.approx(0.99)


@example(
    [(100, b"f", 0, 1), (100, b"f", 121, 1), (100, b"g", 60, 1)]
)  # a minute that another file's later wait had passed
@given(
    st.lists(
        st.tuples(
            st.sampled_from([100, 101, 200, 0]),
            st.sampled_from([b"f", b"g"]),
            st.integers(0, 200),
            st.integers(1, 90),
        ),
        max_size=40,
    )
)
def test_waits_credited_together_add_up_to_what_each_adds_by_itself(
    waits: list[tuple[int, bytes, int, int]],
) -> None:
    together, apart = stalls(), stalls()
    for task_id, path, end, length in sorted(waits, key=lambda found: found[2]):
        from_s, to_s = float(max(0, end - length)), end + 0.5
        wait(together, task_id, path, from_s, to_s)
        wait(apart, task_id, path, from_s, to_s)
        assert apart.lost_s >= 0  # counts what has ended
    one, other = together.facts(300.0), apart.facts(300.0)
    assert one["waits"] == other["waits"] == len(waits)
    assert one["stall_s"] == pytest.approx(other["stall_s"])
    assert one["lost_s"] == pytest.approx(other["lost_s"])
    for table, name in (("processes", "pid"), ("files", "path"), ("groups", "group")):
        rows = {row[name]: (row["stall_s"], row["lost_s"], row["waits"]) for row in other[table]}
        assert {row[name] for row in one[table]} == set(rows)
        for row in one[table]:
            assert (row["stall_s"], row["lost_s"], row["waits"]) == pytest.approx(rows[row[name]])
    minutes = {row["who"]: (row["lost_s"], row["stall_s"], row["waits"]) for row in other["recent"]["who"]}
    for row in one["recent"]["who"]:
        assert (row["lost_s"], row["stall_s"], row["waits"]) == pytest.approx(minutes[row["who"]])


def test_many_waits_are_credited_before_anybody_looks() -> None:
    accounts = stalls()
    for number in range(limits.STALL_BATCH_WAITS):
        wait(accounts, 100, b"f", number / 1000, number / 1000 + 0.01)
    assert accounts._ended == []
    assert accounts.facts(1.0)["waits"] == limits.STALL_BATCH_WAITS
