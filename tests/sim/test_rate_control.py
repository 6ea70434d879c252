"""The rate controller against paths in simulated time. Seeded; shares are of what the path could carry."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import median_low

import pytest

from common.serving.rate_control import RateController
from common.serving.steering import LOOK_EVERY_S, START_LOOK_EVERY_S
from tests.sim.path_sim import PathSim, Tcp

RATE = 12.5e6
ALLOWED_QUEUE_S = 0.030


@dataclass
class Outcome:
    sim: PathSim
    controller: RateController
    log: list[tuple[float, float]]

    def share(self, start_s: float, end_s: float) -> float:
        span = [(at_s, delivered) for at_s, delivered in self.log if start_s <= at_s <= end_s]
        return (span[-1][1] - span[0][1]) / (span[-1][0] - span[0][0]) / RATE

    def queue_s(self, start_s: float, end_s: float, quantile: float = 0.99) -> float:
        seen = sorted(queue_s for at_s, queue_s in self.sim.queue_s_seen if start_s <= at_s <= end_s)
        return seen[int(quantile * (len(seen) - 1))]


def steer(
    rtt_s: float,
    until_s: float,
    *,
    rate: Callable[[float], float] = lambda _now_s: RATE,
    buffer_s: float = 0.06,
    loss: float = 0.0,
    seed: int = 1,
    flow: Tcp | None = None,
    other: Tcp | None = None,
    steered: bool = True,
    known_bytes_per_s: float = 0.0,
) -> Outcome:
    sim = PathSim(rtt_s, rate, buffer_s * RATE, loss=loss, seed=seed)
    controller, ours = RateController(known_bytes_per_s), flow or Tcp("bbr")
    ours.limit_bytes_per_s = lambda: controller.pace_bytes_per_s
    log: list[tuple[float, float]] = []

    def look() -> None:
        log.append((sim.now_s, ours.delivered_bytes))
        if steered and ours.rtt_s:
            controller.observe(
                sim.now_s,
                delivered_bytes=int(ours.delivered_bytes),
                rtt_s=ours.rtt_s,
                min_rtt_s=ours.min_rtt_s,
                busy=True,
            )

    sim.run([ours] if other is None else [ours, other], until_s, look)
    return Outcome(sim, controller, log)


@pytest.mark.parametrize("rtt_s", [0.0, 0.01, 0.06, 0.25])
@pytest.mark.parametrize("kind", ["bbr", "greedy"])
def test_a_steady_path_is_filled_and_its_queue_stays_short(rtt_s: float, kind: str) -> None:
    seen = steer(rtt_s, 14, flow=Tcp("bbr" if kind == "bbr" else "greedy"), buffer_s=max(0.06, rtt_s))
    assert seen.share(6, 14) >= 0.97
    assert seen.queue_s(6, 14) <= max(ALLOWED_QUEUE_S, 0.4 * rtt_s)


def test_without_it_the_same_path_keeps_a_queue() -> None:
    """The simulation must be able to show what the controller is for."""
    assert steer(0.06, 10, steered=False).queue_s(4, 10, 0.5) > 0.05
    assert steer(0.06, 10, steered=False, flow=Tcp("greedy"), buffer_s=1.0).queue_s(4, 10, 0.5) > 0.5


def start_of_many(
    *,
    known_bytes_per_s: float = 0.0,
    steered: bool = True,
    until_s: float = 12 * 0.06,
    rate: float = 125e6,
    shared: Callable[[float], float] = lambda _now_s: 1.0,
) -> tuple[float, float]:
    """Twelve connections that double each round trip begin at once at ``rate`` bytes a second and 60 ms: the longest queue in
    seconds, and the share of what the link could carry until ``until_s``. ``shared``: how much of the link there is."""
    links = 12
    sim = PathSim(0.06, lambda now_s: rate * shared(now_s), 0.06 * rate)
    controller = RateController(known_bytes_per_s)

    def limit() -> float | None:
        pace = controller.pace_bytes_per_s
        return pace / links if pace is not None and steered else None

    flows = [Tcp("greedy", limit_bytes_per_s=limit, window_bytes=64e3) for _ in range(links)]

    def look() -> None:
        moving = [flow for flow in flows if flow.rtt_s]
        if moving:
            controller.observe(
                sim.now_s,
                delivered_bytes=int(sum(flow.delivered_bytes for flow in flows)),
                rtt_s=median_low(flow.rtt_s for flow in moving),
                min_rtt_s=min(flow.min_rtt_s for flow in moving),
                busy=True,
            )

    sim.run(flows, until_s, look, lambda: START_LOOK_EVERY_S if controller.starts else LOOK_EVERY_S)
    share = sum(flow.delivered_bytes for flow in flows) / (rate * until_s)
    return max(queue_s for _, queue_s in sim.queue_s_seen), share


def test_a_start_does_not_fill_the_buffer_and_fills_the_link() -> None:
    queue_s, share = start_of_many()
    assert queue_s <= 0.025
    assert share >= 0.6
    assert start_of_many(steered=False)[0] > 0.057  # all of the buffer, else the simulation shows nothing


def test_a_start_on_a_link_of_300_mbit_does_not_fill_its_buffer_either() -> None:
    """Its first round trip brings more than twice what the link carries: all of the buffer, and lost segments, until a start was held."""
    queue_s, share = start_of_many(rate=37.5e6)
    assert queue_s <= 0.045
    assert share >= 0.75


def test_who_comes_back_to_a_known_path_makes_no_queue() -> None:
    queue_s, share = start_of_many(known_bytes_per_s=125e6)
    assert queue_s <= 0.01
    assert share >= 0.6


@pytest.mark.parametrize("at_s", [0.4, 0.5, 0.6])
def test_a_machine_that_stops_for_a_moment_during_a_start_is_not_taken_for_a_slow_path(at_s: float) -> None:
    """The rate fell to what such a moment brought, and took 3 s to rise again: 0.49 of the link in the first 4 s."""
    _, share = start_of_many(until_s=4.0, shared=lambda now_s: 0.05 if at_s <= now_s < at_s + 0.2 else 1.0)
    assert share >= 0.7


@pytest.mark.parametrize("late_looks", [1, 5])
def test_one_look_with_late_acknowledgements_does_not_end_a_start(late_looks: int) -> None:
    controller = RateController()
    for step in range(60):
        queue_s = 0.02 if 40 <= step < 40 + late_looks else 0.0
        now_s = step * START_LOOK_EVERY_S
        delivered_bytes = int(now_s * RATE)
        controller.observe(now_s, delivered_bytes=delivered_bytes, rtt_s=0.06 + queue_s, min_rtt_s=0.06, busy=True)
    assert controller.starts == (late_looks == 1)


@pytest.mark.parametrize("now_factor", [0.5, 2.0])
def test_a_path_that_changed_while_nobody_was_there_is_learned_anew(now_factor: float) -> None:
    seen = steer(0.06, 8, known_bytes_per_s=RATE / now_factor)
    assert seen.share(4, 8) >= 0.93
    assert seen.queue_s(4, 8) <= ALLOWED_QUEUE_S


def test_while_the_path_is_full_the_rate_is_not_raised_until_a_queue_shows() -> None:
    """Rounds of 250 ms: what is raised twice before its queue is seen stands there for as long again."""
    seen = steer(0.25, 14, flow=Tcp("greedy"), buffer_s=0.25)
    assert seen.queue_s(6, 14) <= ALLOWED_QUEUE_S


def test_what_a_start_shows_too_much_is_soon_forgotten() -> None:
    controller = RateController()
    delivered, now_s = 0.0, 0.0
    for step in range(30):
        now_s += 0.05
        delivered += 0.05 * RATE * (1.15 if step < 8 else 1.0)
        controller.observe(now_s, delivered_bytes=int(delivered), rtt_s=0.09, min_rtt_s=0.06, busy=True)
    assert controller.path_bytes_per_s <= 1.02 * RATE


@pytest.mark.parametrize("known", [0.0, RATE])
def test_a_busy_machine_at_the_start_is_not_taken_for_a_slow_path(known: float) -> None:
    """Acknowledgements late by 12 ms, and half of what the path has: processes that wait for a core."""
    controller = RateController(known)
    delivered, now_s = 0.0, 0.0
    for step in range(40):
        stalls = 12 <= step < 18
        now_s += 0.05
        delivered += 0.05 * RATE * (0.5 if stalls else 1.0)
        queue_s = 0.03 if step < 6 and not known else 0.012 if stalls else 0.0
        controller.observe(now_s, delivered_bytes=int(delivered), rtt_s=0.06 + queue_s, min_rtt_s=0.06, busy=True)
    assert controller.path_bytes_per_s >= 0.8 * RATE


@pytest.mark.parametrize("seed", range(4))
def test_uneven_acknowledgements_do_not_keep_a_rate_low(seed: int) -> None:
    """A tenth of each look comes early or late, and round trips vary by 2 ms: half of the path's rate grows to it all the same."""
    dice = Random(seed)
    controller = RateController(RATE / 2)
    now_s, delivered, queue_s, late = 0.0, 0.0, 0.0, 0.0
    let_go = [RATE / 2] * 2
    while now_s < 4.0:
        now_s += 0.05
        let_go.append(controller.pace_bytes_per_s or RATE)
        queue_s = max(0.0, queue_s + (let_go[-2] / RATE - 1) * 0.05)
        out = 0.05 * (RATE if queue_s else min(RATE, let_go[-2]))
        before, late = late, dice.gauss(0, 0.1) * out
        delivered += out + before - late
        rtt_s = 0.06 + queue_s + abs(dice.gauss(0, 0.002))
        controller.observe(now_s, delivered_bytes=int(delivered), rtt_s=rtt_s, min_rtt_s=0.06, busy=True)
    assert controller.path_bytes_per_s >= 0.9 * RATE


def test_at_900_ms_the_path_is_filled() -> None:
    seen = steer(0.9, 40, buffer_s=0.9)
    assert seen.share(20, 40) >= 0.95
    assert seen.queue_s(20, 40) <= 0.45


def test_a_deep_buffer_is_not_filled() -> None:
    seen = steer(0.06, 14, flow=Tcp("greedy"), buffer_s=2.0)
    assert seen.share(6, 14) >= 0.97
    assert seen.queue_s(6, 14) <= ALLOWED_QUEUE_S


@pytest.mark.parametrize("loss", [0.001, 0.01])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_loss_is_no_reason_to_slow_down(loss: float, seed: int) -> None:
    seen = steer(0.06, 12, loss=loss, seed=seed)
    assert seen.share(4, 12) >= 0.95
    assert seen.queue_s(4, 12) <= ALLOWED_QUEUE_S


@pytest.mark.parametrize("rtt_s", [0.01, 0.06])
def test_a_rate_that_halves_and_comes_back_is_followed_both_ways(rtt_s: float) -> None:
    seen = steer(rtt_s, 24, rate=lambda now_s: RATE / 2 if 8 <= now_s < 16 else RATE)
    assert seen.share(10, 16) >= 0.48
    assert seen.queue_s(10, 16) <= ALLOWED_QUEUE_S
    assert seen.share(18, 24) >= 0.95
    assert seen.queue_s(18, 24) <= ALLOWED_QUEUE_S


def test_a_competing_flow_does_not_starve_us_and_afterwards_the_queue_goes() -> None:
    other = Tcp("greedy", start_s=6, stop_s=24)
    seen = steer(0.06, 60, other=other)
    assert seen.share(6, 24) >= 0.4
    assert seen.share(50, 60) >= 0.9
    assert seen.queue_s(56, 60, 0.5) <= ALLOWED_QUEUE_S


def test_short_stalls_of_a_machine_are_not_taken_for_a_slower_path() -> None:
    dice = Random(3)
    stalls = [(start * 0.4 + 0.3 * dice.random(), 0.02 + 0.04 * dice.random()) for start in range(40)]
    stalled_share = sum(length_s for _, length_s in stalls) / 16

    def rate(now_s: float) -> float:
        return 1e4 if any(start_s < now_s < start_s + length_s for start_s, length_s in stalls) else RATE

    assert steer(0.06, 16, rate=rate).share(4, 16) >= 0.9 * (1 - stalled_share)


def test_nothing_to_send_and_silence_teach_nothing() -> None:
    controller = RateController()
    for step in range(200):  # a slow trickle with a long way round: not busy
        controller.observe(step * 0.05, delivered_bytes=step * 4096, rtt_s=0.2, min_rtt_s=0.06, busy=False)
    assert controller.rate_bytes_per_s is None
    taught = steer(0.06, 6).controller
    rate = taught.rate_bytes_per_s
    assert rate is not None
    for step in range(100):  # an outage: nothing is acknowledged
        taught.observe(100 + step * 0.05, delivered_bytes=10**9, rtt_s=0.5, min_rtt_s=0.06, busy=True)
    assert taught.rate_bytes_per_s == rate


def test_late_acknowledgements_of_a_few_bytes_are_no_queue() -> None:
    controller = RateController()
    for step in range(100):
        controller.observe(step * 0.05, delivered_bytes=step * 500, rtt_s=0.05, min_rtt_s=0.0001, busy=True)
    assert controller.rate_bytes_per_s is None


def test_the_same_path_gives_the_same_rates() -> None:
    first, second = (steer(0.06, 5, loss=0.01, seed=4) for _ in range(2))
    assert first.log == second.log
    assert first.controller.rate_bytes_per_s == second.controller.rate_bytes_per_s
