"""The file that training images copy: what it announces, in which order, how far ahead, and that it disturbs nothing."""

from __future__ import annotations

import ast
import errno
import fcntl
import logging
import os
import pickle
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from names_support import directory, file, filled

from common.entries import Change
from spoke import hints
from spoke.plans import Plans
from spoke.prefetch.orders import Order

MIB = 1 << 20
SOURCE = Path(hints.__file__)
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
OLDEST = [path for path in (*PYENV.glob("versions/3.8.*/bin/python3.8"), Path("/usr/bin/python3.8")) if path.exists()]


class Listener:
    """A spoke's side of the channel without a mount: what was announced lies in its orders."""

    def __init__(self) -> None:
        self.tree = filled({b"d": directory(), b"d/f": file(1, 4096 * MIB), b"d/g": file(2, 8 * MIB)})
        self.orders_by_name: dict[str, Order] = {}
        self.position = 0
        self.messages = 0
        self.errno = 0
        self.plans = Plans(self.tree, self, lambda: 1.0)

    def add_order(self, order: Order) -> None:
        self.orders_by_name[order.name] = order

    def drop_order(self, name: str) -> bool:
        return self.orders_by_name.pop(name, None) is not None

    def order_grew(self, name: str) -> None:
        assert name in self.orders_by_name

    def orders(self) -> list[dict[str, Any]]:
        lanes = [{"position": self.position}]
        return [
            {"name": name, "state": "locked", "used_bytes": 0, "wasted_bytes": 0, "lanes": lanes}
            for name in self.orders_by_name
        ]

    def ioctl(self, _fd: int, command: int, buffer: bytearray, mutate: bool) -> int:
        assert mutate
        assert len(buffer) == command >> 16 & 0x3FFF
        self.messages += 1
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno))
        answered = self.plans.ioctl(command, bytes(buffer), len(buffer))
        assert answered is not None
        result, answer = answered
        buffer[: len(answer)] = answer
        if result:
            raise OSError(-result, os.strerror(-result))
        return 0

    def steps(self) -> list[tuple[bytes, int, int]]:
        (order,) = self.orders_by_name.values()
        found = [order.step(0, position) for position in range(order.first(0), order.length(0))]
        return [(order.files[step.file].path, step.offset_bytes, step.length_bytes) for step in found]

    def indices(self, record_bytes: int) -> list[int]:
        return [offset // record_bytes for _, offset, _ in self.steps()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".headrace").mkdir()
    (tmp_path / ".headrace/plan").touch()
    (tmp_path / "d").mkdir()
    for name in ("f", "g"):
        (tmp_path / "d" / name).touch()
    return tmp_path


@pytest.fixture
def listener(root: Path, monkeypatch: pytest.MonkeyPatch) -> Listener:
    heard = Listener()

    def find_mount(path: hints.PathLike) -> tuple[bytes, bytes] | None:
        inside = os.path.relpath(os.path.realpath(os.fsencode(path)), os.fsencode(root))
        return None if inside.startswith(b"..") else (os.fsencode(root), inside)

    monkeypatch.setattr(hints, "find_mount", find_mount)
    monkeypatch.setattr(fcntl, "ioctl", heard.ioctl)
    return heard


def shuffled(count: int, seed: int = 1) -> list[int]:
    order = list(range(count))
    Random(seed).shuffle(order)
    return order


class Epochs:
    """A sampler as DistributedSampler is: the order follows from the epoch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(shuffled(self.count, self.epoch))


@pytest.mark.parametrize(
    "interpreter", [sys.executable, *OLDEST[:1]]
)  # the oldest, where there is one: its library too
def test_it_is_python_3_8_and_stands_alone(tmp_path: Path, interpreter: str | Path) -> None:
    ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    copy = tmp_path / "headrace_hints.py"
    copy.write_bytes(SOURCE.read_bytes())
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import headrace_hints as hints
assert not {"torch", "numpy", "spoke", "common"} & set(sys.modules)
assert hints.declare(sys.argv[1], [("a", 0, 1)]) == 0
assert list(hints.announce([3, 1, 2], hints.records(sys.argv[1] + "/a", 10))) == [3, 1, 2]
assert hints.facts()["errors"] == 0, hints.facts()
"""
    subprocess.run([interpreter, "-S", "-I", "-c", script, str(tmp_path)], check=True, timeout=30)


def test_beside_a_mount_nothing_is_drawn_ahead(tmp_path: Path) -> None:
    drawn: list[int] = []
    source = (drawn.append(n) or n for n in range(10))
    announced = iter(hints.announce(source, hints.records(tmp_path / "f", 10)))
    assert (next(announced), drawn) == (0, [0])
    assert (next(announced), drawn) == (1, [0, 1])
    assert hints.find_mount(tmp_path / "none") is None
    assert hints.find_mount(7) is None  # type: ignore[arg-type]
    assert hints.declare(tmp_path / "f", indices=[1], record_bytes=4) == 0


def test_ranges_and_records_are_declared(root: Path, listener: Listener) -> None:
    assert hints.declare(root, [("d/f", 5, 10), (root / "d/g", 0, 2 * MIB)], name="a") == 2
    assert listener.steps() == [(b"d/f", 5, 10), (b"d/g", 0, MIB), (b"d/g", MIB, MIB)]
    assert listener.plans.facts()["active"][0]["complete"]
    assert hints.declare(root / "d/g", [(7, 9)], name="a") == 1
    assert listener.steps() == [(b"d/g", 7, 9)]
    assert hints.declare(root / "d/f", indices=array("q", [3, 1]), record_bytes=100, header_bytes=8, name="a") == 2
    assert listener.steps() == [(b"d/f", 308, 100), (b"d/f", 108, 100)]
    assert hints.declare(root / "d/f", indices=[1, 0], offsets=[0, 5, 25], name="a") == 2
    assert listener.steps() == [(b"d/f", 5, 20), (b"d/f", 0, 5)]
    assert hints.declare(root / "d/f", indices=[1], offsets=[0, 5], lengths=[5, 6], name="a") == 1
    assert listener.steps() == [(b"d/f", 5, 6)]


def test_a_file_that_is_not_there_is_named_as_it_lies_below_the_mount(
    root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = hints.find_mount
    monkeypatch.setattr(
        hints, "find_mount", lambda path: known(path) if os.path.exists(path) else None
    )  # as the real one
    (root / "link").symlink_to(root)
    for where in (root, root / "link"):
        assert hints.declare(where, [("d/none", 0, 10)]) == 1
        assert ": 'd/none' is no file of the dataset" in hints.facts()["last_error"]
    assert listener.plans.facts()["left_out_steps"]["unknown-file"] == 2


@pytest.mark.slow
def test_long_declarations_stop_where_there_is_no_room(
    root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.limits.PLAN_MAX_STEPS", 10 * hints.MESSAGE_STEPS)
    drawn = 0

    def endless() -> Iterator[int]:
        nonlocal drawn
        while True:
            drawn += 1
            yield drawn % 1000

    taken = hints.declare(root / "d/f", indices=endless(), record_bytes=4096)
    assert taken == len(listener.steps()) == 10 * hints.MESSAGE_STEPS
    assert drawn <= 12 * hints.MESSAGE_STEPS
    many = [(f"d/{n:04d}" + "x" * 200, 0, 1) for n in range(1000)] + [("d/f", 0, 1)]
    before = listener.messages
    assert hints.declare(root, many, name="files") == 1001
    assert listener.messages > before + 10, "paths of 200 kB are several messages"
    assert listener.orders_by_name["plan:files"].length(0) == 1, (
        "the rest is not there, which does not hurt the one that is"
    )
    assert hints.declare(root / "d/f", [(0, 1 << 40)], name="one range") == 1
    assert listener.orders_by_name["plan:one-range"].length(0) == 4096


def test_it_tells_ahead_of_what_it_yields_and_no_further(root: Path, listener: Listener) -> None:
    order = shuffled(1000)
    drawn: list[int] = []
    source = (drawn.append(n) or n for n in order)
    yielded = []
    for index in hints.announce(source, hints.records(root / "d/f", 4096), ahead=200):
        yielded.append(index)
        assert len(drawn) - len(yielded) <= 200
        assert len(listener.steps()) == len(drawn), "told as soon as drawn"
        assert len(drawn) >= min(1000, 50 * len(yielded), len(yielded) + 150)
    assert yielded == order
    assert listener.indices(4096) == order


def test_epochs_follow_one_another_in_one_plan(root: Path, listener: Listener) -> None:
    sampler = Epochs(300)
    announced = hints.announce(sampler, hints.records(root / "d/f", 4096), name="train")
    assert len(announced) == 300
    said = []
    for epoch in range(3):
        announced.set_epoch(epoch)
        assert list(announced) == shuffled(300, epoch)
        said += shuffled(300, epoch)
    assert sampler.epoch == 2
    assert listener.indices(4096) == said
    assert list(listener.orders_by_name) == ["plan:train"]


def test_a_broken_off_epoch_is_taken_back(root: Path, listener: Listener) -> None:
    announced = hints.announce(Epochs(300), hints.records(root / "d/f", 4096), ahead=100, name="train")
    for number, _ in enumerate(announced):
        if number == 10:
            break
    assert listener.orders_by_name == {}
    assert list(announced) == shuffled(300, 0)
    assert listener.indices(4096) == shuffled(300, 0)


def test_two_loops_at_once_are_two_plans(root: Path, listener: Listener) -> None:
    announced = hints.announce(Epochs(30), hints.records(root / "d/f", 4096), name="train")
    assert list(zip(announced, announced, strict=True)) == list(zip(*2 * [shuffled(30, 0)], strict=True))
    assert len(listener.orders_by_name) == 2


def test_batches_are_told_by_their_indices(root: Path, listener: Listener) -> None:
    order = shuffled(100)
    batches = [order[at : at + 8] for at in range(0, 100, 8)]

    def filling_one_list() -> Iterator[list[int]]:
        batch: list[int] = []
        for some in batches:
            batch[:] = some
            yield batch

    assert list(hints.announce(filling_one_list(), hints.records(root / "d/f", 4096))) == batches
    assert listener.indices(4096) == order


def test_samplers_keep_their_errors_and_their_state(root: Path, listener: Listener) -> None:
    def failing() -> Iterator[int]:
        yield from range(50)
        raise RuntimeError("the sampler's own")

    announced = iter(hints.announce(failing(), hints.records(root / "d/f", 4096)))
    assert [next(announced) for _ in range(50)] == list(range(50))
    with pytest.raises(RuntimeError, match="own"):
        next(announced)

    class Stateful(Epochs):
        def state_dict(self) -> dict[str, int]:
            return {}

    listener.messages = 0
    assert list(hints.announce(Stateful(9), hints.records(root / "d/f", 4096))) == shuffled(9, 0)
    assert listener.messages == 0
    with pytest.raises(TypeError, match="len"):
        len(hints.announce(iter([1]), hints.records(root / "d/f", 1)))
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = hints.announce(Epochs(1), None).nothing_such


@pytest.mark.parametrize("indices", [["a", "b"], [{"key": 1}], [(1, 2), (3,)], [[]], [], [None]])
def test_what_is_no_index_passes_through(root: Path, listener: Listener, indices: list[object]) -> None:
    assert list(hints.announce(indices, hints.records(root / "d/f", 4096))) == indices


def test_a_layout_that_fails_costs_only_the_plan(root: Path, listener: Listener) -> None:
    order = shuffled(5000)
    layout = hints.table(root / "d/f", list(range(4000)), [1] * 4000)  # too short
    assert list(hints.announce(order, layout)) == order
    assert "IndexError" in hints.facts()["last_error"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTTY, errno.ENOTCONN, errno.EIO, errno.ENOSPC])
def test_refusals_are_warned_of_once_and_never_raised(
    root: Path, listener: Listener, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    listener.errno = code
    order = shuffled(20_000)
    with caplog.at_level(logging.WARNING):
        assert list(hints.announce(order, hints.records(root / "d/f", 4096))) == order
    assert len(caplog.records) == (code != errno.ENOSPC)
    assert listener.messages <= (1 if code in (errno.ENOTTY, errno.ENOTCONN) else 25)


def test_what_finds_no_room_is_told_later(root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.limits.PLAN_MAX_STEPS", 20_000)
    order = shuffled(60_000)
    for number, _ in enumerate(hints.announce(order, hints.records(root / "d/f", 4096), name="train")):
        listener.position = max(0, number - 1000)  # the job reads behind what was yielded
        if not number % 500:
            next(iter(listener.orders_by_name.values())).forget(0, listener.position - 1000)  # type: ignore[attr-defined]
    kept = listener.indices(4096)
    assert len(kept) > 2000
    assert kept == order[-len(kept) :]
    assert listener.plans.refused_total["no-room-for-plan"] > 0


def test_a_spoke_that_was_started_anew_is_told_what_is_still_ahead(root: Path, listener: Listener) -> None:
    order = shuffled(6000)
    for number, _ in enumerate(hints.announce(order, hints.records(root / "d/f", 4096), ahead=2000)):
        if number == 500:
            assert listener.plans.active == 1
            listener.plans = Plans(listener.tree, listener, lambda: 1.0)
            listener.orders_by_name.clear()
    said = listener.indices(4096)
    assert len(said) >= 6000 - 500 - hints.MESSAGE_STEPS
    again = [index for index in said if index in set(order[600:2400])]
    assert set(again) >= set(order[1200:2400])


def test_a_forked_process_says_a_plan_of_its_own(root: Path, listener: Listener) -> None:
    plan = hints.Plan(root)
    assert plan.add([(root / "d/f", 0, 1)]) == 1
    ours = plan._token
    child = os.fork()
    if not child:
        fresh = plan.add([(root / "d/f", 0, 1)]) == 1 and plan._token != ours and len(listener.orders_by_name) == 2
        os._exit(0 if fresh else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    child = os.fork()
    if not child:
        before = listener.messages
        plan.drop()  # the parent's: not the child's to drop
        os._exit(listener.messages - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_windows_of_a_memmap(root: Path, listener: Listener) -> None:
    assert list(hints.memmap([2, 0], root / "d/f", 2, 1025, stride_items=1024, header_bytes=6)) == [2, 0]
    assert listener.steps() == [(b"d/f", 6 + 2 * 2048, 2050), (b"d/f", 6, 2050)]
    mapped = SimpleNamespace(filename=str(root / "d/g"), offset=128)
    listener.orders_by_name.clear()
    assert list(hints.memmap([5], mapped, 4, 100)) == [5]
    assert listener.steps() == [(b"d/g", 128 + 5 * 400, 400)]


def test_datasets_one_after_another(root: Path, listener: Listener) -> None:
    layout = hints.concat([(10, hints.records(root / "d/f", 100)), (5, hints.records(root / "d/g", 50))])
    assert list(hints.announce([14, 0, 10, 9], layout)) == [14, 0, 10, 9]
    assert listener.steps() == [(b"d/g", 200, 50), (b"d/f", 0, 100), (b"d/g", 0, 50), (b"d/f", 900, 100)]


def megatron_dataset(prefix: Path) -> SimpleNamespace:
    """Documents of 5, 7 and 4 tokens of 2 bytes, in samples of 6 tokens and one more."""
    index = SimpleNamespace(sequence_pointers=[0, 10, 24], sequence_lengths=[5, 7, 4], dtype_size=2)
    return SimpleNamespace(
        dataset=SimpleNamespace(path_prefix=str(prefix), index=index),
        document_index=[2, 0, 1],
        sample_index=[(0, 0), (1, 2), (2, 3)],
        shuffle_index=[1, 0],
        config=SimpleNamespace(add_extra_token_to_sequence=1),
    )


def test_fragments_of_megatrons_samples(root: Path, listener: Listener) -> None:
    (root / "d/f.bin").touch()
    listener.tree.upsert(b"d/f.bin", file(5, 32))
    assert list(hints.megatron([[0, 1]], megatron_dataset(root / "d/f"))) == [[0, 1]]
    # sample 1: document 0 from token 2, document 1 to token 3 + 1; sample 0: document 2 whole, document 0 to 2 + 1
    assert [place[1:] for place in listener.steps()] == [(4, 6), (10, 8), (24, 8), (0, 6)]
    assert list(hints.megatron([1, 2], object())) == [1, 2]


def test_it_can_be_pickled(root: Path, listener: Listener) -> None:
    announced = hints.announce(Epochs(20), hints.records(root / "d/f", 4096), name="train")
    assert list(announced) == shuffled(20, 0)
    again = pickle.loads(pickle.dumps(announced))
    assert list(again) == shuffled(20, 0)


def marks_of(listener: Listener) -> list[Any]:
    heard: list[Any] = []
    listener.plans = Plans(listener.tree, None, lambda: 1.0, lambda message, _task: heard.append(message))
    return heard


def test_steps_are_marked_with_their_waits_and_said_together(
    listener: Listener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = marks_of(listener)
    now = [100.0]
    monkeypatch.setattr(hints.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(hints, "_markers", {})
    monkeypatch.setenv("RANK", "3")

    def loader() -> Iterator[int]:
        for number in range(5):
            now[0] += 0.25
            yield number

    for number in hints.steps(loader(), root / "d/f"):
        now[0] += 0.125 * number
    message, rest = heard  # said once a second
    assert (message.name, message.rank, message.from_step) == (f"rank3-{os.getpid()}", 3, 0)
    assert [(mark.took_s, mark.wait_s) for mark in message.marks] == [(0.25, 0.25), (0.375, 0.25), (0.5, 0.25)]
    assert [mark.ago_s for mark in message.marks] == [0.875, 0.5, 0.0]
    assert (rest.from_step, [mark.took_s for mark in rest.marks]) == (3, [0.625, 0.75])
    now[0] += 0.5
    hints.step()
    assert len(heard) == 2
    hints._markers[os.getpid()].say()  # as at the end of the process
    assert (heard[2].from_step, [mark.wait_s for mark in heard[2].marks]) == (5, [None])


def test_marks_stop_where_nobody_takes_them_and_cost_nothing_without_a_mount(
    listener: Listener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(hints.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(hints, "_markers", {})
    listener.errno = errno.EPROTONOSUPPORT  # an older spoke
    for _ in range(100):
        hints.step(root / "d/f", rank=1)
        now[0] += 0.2
    assert listener.messages == 1
    monkeypatch.setattr(hints, "_markers", {})
    for _ in range(10):
        hints.step("/nowhere/at/all", rank=1)
        now[0] += 2.0
    assert listener.messages == 1


def test_a_fork_marks_steps_of_its_own(listener: Listener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = marks_of(listener)
    now = [100.0]
    monkeypatch.setattr(hints.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(hints, "_markers", {})
    hints.step(root, name="job")
    now[0] += 0.5
    hints.step()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)  # as in a forked child
    hints.step(root)
    now[0] += 2.0
    hints.step()
    assert [(message.name, message.from_step, len(message.marks)) for message in heard] == [(f"job-{pid + 1}", 0, 1)]


class BatchSampler:
    """As PyTorch's: a sampler inside, which loops and trainers reach for by ``loader.batch_sampler.sampler``."""

    def __init__(self, sampler: Epochs, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        drawn = list(self.sampler)
        return iter([drawn[at : at + self.batch_size] for at in range(0, len(drawn), self.batch_size)])


def test_a_wrapped_batch_samplers_own_sampler_is_reached_through_it(root: Path, listener: Listener) -> None:
    announced = hints.announce(BatchSampler(Epochs(40), 8), hints.records(root / "d/f", 4096))
    announced.sampler.set_epoch(3)
    assert [index for batch in announced for index in batch] == shuffled(40, 3)
    assert listener.indices(4096) == shuffled(40, 3)


def test_what_is_set_on_it_is_set_on_the_wrapped_one(root: Path, listener: Listener) -> None:
    sampler = Epochs(40)
    announced = hints.announce(sampler, hints.records(root / "d/f", 4096))
    announced.epoch = 5
    assert sampler.epoch == 5
    assert list(announced) == shuffled(40, 5)
    assert list(pickle.loads(pickle.dumps(announced))) == shuffled(40, 5)


def test_a_batch_samplers_stateful_sampler_is_not_drawn_ahead(root: Path, listener: Listener) -> None:
    class Stateful(Epochs):
        def state_dict(self) -> dict[str, int]:
            return {}

    announced = hints.announce(BatchSampler(Stateful(40), 8), hints.records(root / "d/f", 4096))
    assert [index for batch in announced for index in batch] == shuffled(40, 0)
    assert listener.messages == 0


def test_batches_may_be_arrays_and_ranges(root: Path, listener: Listener) -> None:
    numpy = pytest.importorskip("numpy")
    order = numpy.array(shuffled(40))
    buffer = numpy.zeros(8, dtype=numpy.int64)

    def filling_one_array() -> Iterator[Any]:
        for at in range(0, 40, 8):
            buffer[:] = order[at : at + 8]
            yield buffer

    got = [batch.tolist() for batch in hints.announce(filling_one_array(), hints.records(root / "d/f", 4096))]
    assert [index for batch in got for index in batch] == order.tolist() == listener.indices(4096)
    listener.orders_by_name.clear()
    assert list(hints.announce([range(3), range(7, 9)], hints.records(root / "d/f", 4096))) == [range(3), range(7, 9)]
    assert listener.indices(4096) == [0, 1, 2, 7, 8]


def test_slices_of_a_memmap_begin_where_they_were_cut(root: Path, listener: Listener, tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with (root / "d/f").open("wb") as file:
        file.truncate(1 << 20)
    whole = numpy.memmap(root / "d/f", dtype=numpy.uint16, mode="r", offset=64)
    train = whole[1000:][500:]
    assert list(hints.memmap([2], train, 2, 10)) == [2]
    assert listener.steps() == [(b"d/f", 64 + 2 * 1500 + 2 * 20, 20)]
    errors = hints.facts()["errors"]
    for useless in (
        whole[::2],
        numpy.frombuffer(whole, dtype=numpy.uint16),
        None,
        SimpleNamespace(filename=None, offset=0),
    ):
        assert list(hints.memmap([2], useless, 2, 10)) == [2]
    assert hints.facts()["errors"] == errors + 4


def test_a_blend_of_megatron_datasets_on_and_off_the_mount(
    root: Path, listener: Listener, tmp_path_factory: Any
) -> None:
    elsewhere = tmp_path_factory.mktemp("local") / "b"
    elsewhere.with_suffix(".bin").touch()
    (root / "d/f.bin").touch()
    listener.tree.apply(Change(listener.tree.revision + 1, b"d/f.bin", file(7, 1000)))
    blend = SimpleNamespace(
        datasets=[megatron_dataset(elsewhere), megatron_dataset(root / "d/f")],
        dataset_index=[0, 1, 0, 1],
        dataset_sample_index=[0, 0, 1, 1],
    )
    assert list(hints.megatron([0, 1, 2, 3], blend)) == [0, 1, 2, 3]
    told = listener.steps()
    listener.orders_by_name.clear()
    assert list(hints.megatron([0, 1], blend.datasets[1])) == [0, 1]
    assert told == listener.steps() != []
    assert listener.plans.refused_total == {}


def test_what_cannot_be_announced_is_warned_of_where_there_is_a_mount(
    root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hints, "_warned_of", set())
    with caplog.at_level(logging.WARNING):
        for mounts in ([], [b"/mnt"]):
            monkeypatch.setattr(hints, "_mounts", lambda mounts=mounts: mounts)
            for _ in range(3):
                assert list(hints.megatron([1], object())) == [1]
            assert len(caplog.records) == len(mounts)
        for _ in range(2):
            assert list(hints.announce(shuffled(5000), hints.table(root / "d/f", [0] * 4000, [1] * 4000)))
    assert len(caplog.records) == 2
    assert "IndexError" in caplog.records[1].message


def test_a_range_longer_than_its_file_is_cut_and_costs_few_messages(root: Path, listener: Listener) -> None:
    assert hints.declare(root / "d/g", [(0, 1 << 50)], name="long") == 1
    assert len(listener.steps()) == 8
    assert listener.messages <= 3
    (plan,) = listener.plans.facts()["active"]
    assert plan["complete"], "its end was said"
    assert sum(listener.plans.facts()["refused_messages"].values()) <= 1, "the one past its end"
