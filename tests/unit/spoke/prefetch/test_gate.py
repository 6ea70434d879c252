"""A source that does not pay is switched off, and opened again when what it predicts is read."""

from __future__ import annotations

from common import limits
from spoke.prefetch.gate import Gate

MIB = 1024 * 1024


def test_it_stays_open_while_most_is_used() -> None:
    gate = Gate()
    for _ in range(10_000):
        gate.used(MIB)
        gate.wasted(MIB // 2)
    assert gate.is_open


def test_waste_alone_closes_it_at_the_allowance() -> None:
    gate, wasted_bytes = Gate(), 0
    while gate.is_open:
        gate.wasted(MIB)
        wasted_bytes += MIB
    assert wasted_bytes <= 2 * limits.PREFETCH_GATE_ALLOWANCE_BYTES + MIB


def test_a_trial_without_fetching_opens_it_again() -> None:
    gate = Gate()
    while gate.is_open:
        gate.wasted(MIB)
    for _ in range(limits.PREFETCH_GATE_TRIAL_BYTES // MIB):
        gate.used(MIB)
    assert gate.is_open


def test_each_trial_in_vain_is_longer() -> None:
    gate, lengths = Gate(), []
    while gate.is_open:
        gate.wasted(MIB)
    for _ in range(3):
        gate_trial_bytes = gate._trial_bytes
        lengths.append(gate_trial_bytes)
        for _ in range(gate_trial_bytes // MIB):
            gate.wasted(MIB)
        assert not gate.is_open
    assert lengths == [32 * MIB, 64 * MIB, 128 * MIB]
    assert gate.closed_count == 1


def test_what_came_late_is_forgiven() -> None:
    gate = Gate()
    for _ in range(1000):
        gate.wasted(MIB)
        gate.refunded(MIB)
    assert gate.is_open


def test_the_distant_past_is_forgotten() -> None:
    gate = Gate()
    gate.used(1 << 50)
    for _ in range(64):
        gate.used(1)
    spent_bytes = 0
    while gate.is_open:
        gate.wasted(16 * MIB)
        spent_bytes += 16 * MIB
    assert spent_bytes <= 8 * limits.PREFETCH_GATE_MEMORY_BYTES
