"""The whole system under seeds: what must hold does, a seed replays to the byte, and bugs that are put in are found."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bench.simulation.plan import KINDS, plan_of
from bench.simulation.run import Outcome, run_seed

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # coroutines that a simulated kill left unawaited


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


SEEDS = range(1, 15)


def found_by(seeds: Sequence[int], only: Sequence[str] | None = None) -> list[str]:
    """The violations of the first seed that has any."""
    for seed in seeds:
        outcome = run_seed(seed, only)
        if outcome.violations:
            return outcome.violations
    return []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_hold_holds(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.violations, f"make sim SEED={seed}: {outcome.violations[0]}"
    assert outcome.reads > 0


def test_these_seeds_break_most_things() -> None:
    """Else the runs above would prove little."""
    kinds = {fault.kind for seed in SEEDS for fault in plan_of(seed).faults}
    assert len(kinds) >= len(KINDS) * 0.9, sorted(set(KINDS) - kinds)
    assert any(not plan_of(seed).faults for seed in range(200)), (
        "some run must know no fault at all, and so excuse no error"
    )


def same(one: Outcome, other: Outcome) -> bool:
    return (one.digest, one.reads, one.took_s) == (other.digest, other.reads, other.took_s)


def test_a_seed_is_the_same_run_again() -> None:
    assert same(run_seed(16), run_seed(16))
    assert run_seed(16).digest != run_seed(17).digest


def test_a_seed_is_the_same_run_in_another_process_whatever_its_hashes() -> None:
    program = "from bench.simulation.run import run_seed; print([run_seed(seed).digest for seed in (3, 10)])"
    digests = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
    assert digests == {f"{[run_seed(seed).digest for seed in (3, 10)]}\n"}


# --- bugs, put in on purpose ----------------------------------------------------------------------------------------


def test_bytes_from_the_wire_that_nobody_compares_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spoke.fetcher.first_mismatch", lambda *_: None)
    assert any("[bytes]" in found or "[one version]" in found for found in found_by(range(5), ["link corrupts"]))


def test_bytes_from_the_cache_disk_that_nobody_compares_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from spoke.cache import cached_file

    right = cached_file.read_blocks

    def trusting(*arguments: Any) -> Any:
        return right(*arguments)[0], []

    monkeypatch.setattr("spoke.cache.reader.read_blocks", trusting)
    assert any("[bytes]" in found or "[one version]" in found for found in found_by(range(8), ["cache damaged: data"]))


def test_a_hub_that_does_not_notice_a_change_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.reader._require_identity", lambda _fd, _identity: None)
    assert any("[one version]" in found or "[bytes]" in found for found in found_by(range(8), []))


def test_a_change_that_a_spoke_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from spoke.namespace.tree import Tree

    right = Tree.remove
    monkeypatch.setattr(Tree, "remove", lambda tree, path: right(tree, path) if len(path) % 2 else [])
    assert any("[converges]" in found for found in found_by(range(8), []))


def test_a_request_that_dies_with_its_link_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from spoke.hub_client.client import HubClient

    monkeypatch.setattr(HubClient, "_leave_link", lambda *_: None)
    assert found_by(range(8), ["link reset"])
