from random import Random

from common.backoff import Backoff, delay_s


def test_delays_grow_to_the_cap_with_jitter_and_start_again_after_a_success() -> None:
    backoff, dice = Backoff(first_s=0.1, cap_s=2.0), Random(1)
    delays = [backoff.next_delay_s(dice) for _ in range(10)]
    for failures, waited_s in enumerate(delays):
        step_s = min(2.0, 0.1 * 2**failures)
        assert step_s / 2 <= waited_s <= step_s
    assert len(set(delays[6:])) > 1, "the cap must not take the jitter away"
    backoff.reset()
    assert backoff.next_delay_s(dice) <= 0.1


def test_a_thousand_failures_do_not_overflow() -> None:
    assert delay_s(1000, 0.1, 5.0, Random(1)) <= 5.0
