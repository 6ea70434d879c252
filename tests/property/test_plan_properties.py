"""The plan channel under any input: what is packed reads back, and no bytes do more than be refused."""

from hypothesis import given
from hypothesis import strategies as st
from names_support import directory, file, filled

from common import limits
from common.errors import HeadraceError
from spoke import hints
from spoke.plan_file import PlannedRange, read_plan_file
from spoke.plan_message import Kind, decode, encode_short
from spoke.plans import Plans

paths = st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5)
numbers = st.integers(0, (1 << 63) - 1)
small = st.integers(0, 5000)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[bytes], list[int], list[int], list[int]]:
    names = draw(paths)
    count = draw(st.integers(0, 50))
    size = st.lists(draw(st.sampled_from([numbers, small])), min_size=count, max_size=count)
    return (
        names,
        draw(st.lists(st.integers(0, len(names) - 1), min_size=count, max_size=count)),
        draw(size),
        draw(size),
    )


@given(columns(), st.integers(0, (1 << 64) - 1), numbers, st.booleans(), st.integers(0, 40))
def test_messages_read_back_as_they_were_packed(
    said: tuple[list[bytes], list[int], list[int], list[int]], token: int, from_step: int, last: bool, padding: int
) -> None:
    message = decode(hints.pack_steps(token, b"name", from_step, *said, last=last) + bytes(padding))
    assert (message.kind, message.name, message.token, message.from_step) == (Kind.STEPS, "name", token, from_step)
    assert message.last == last
    read = message.paths, message.files, message.offsets_bytes, message.lengths_bytes
    assert tuple(map(list, read)) == said


@given(
    st.lists(st.tuples(st.floats(0, 4000), st.floats(0, 4000), st.none() | st.floats(0, 4000)), max_size=50),
    st.none() | st.integers(0, 0xFFFFFFFE),
    numbers,
)
def test_marks_read_back_to_the_microsecond(
    marks: list[tuple[float, float, float | None]], rank: int | None, first: int
) -> None:
    message = decode(hints.pack_marks(b"name", first, rank, marks))
    assert (message.kind, message.rank, message.from_step) == (Kind.MARKS, rank, first)
    for mark, said in zip(message.marks, marks, strict=True):
        for value, was in zip(mark, said, strict=True):
            assert (value is None) == (was is None)
            assert value is None or was is None or abs(value - was) <= 1e-6


class NobodyFollows:
    def add_order(self, order: object) -> None:
        pass

    def drop_order(self, name: str) -> bool:
        return True

    def order_grew(self, name: str) -> None:
        pass

    def orders(self) -> list[dict[str, object]]:
        return []


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A message of a plan, with some of its bytes changed, cut, or put in."""
    names = draw(st.lists(st.sampled_from([b"d/f", b"d/g", b"d", b"no"]), min_size=1, max_size=4, unique=True))
    count = draw(st.integers(0, 30))
    column = st.lists(small, min_size=count, max_size=count)
    files = draw(st.lists(st.integers(0, len(names) - 1), min_size=count, max_size=count))
    name = draw(st.sampled_from([b"a", b"b", b"c"]))
    data = bytearray(
        hints.pack_steps(draw(st.integers(1, 2)), name, draw(small), names, files, draw(column), draw(column))
    )
    for at, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=3)):
        data[at] = value
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@given(st.lists(st.one_of(spoiled(), st.binary(max_size=200), st.just(encode_short(Kind.DROP, "a"))), max_size=30))
def test_no_bytes_do_more_than_be_refused(messages: list[bytes]) -> None:
    tree = filled({b"d": directory(), b"d/f": file(1, 4000), b"d/g": file(2, 1 << 40)})
    plans = Plans(tree, NobodyFollows(), lambda: 1.0)
    taken = 0
    for message in messages:
        try:
            answer = plans.message(message)
        except HeadraceError:
            continue
        taken += 1
        assert 0 <= answer.waiting_steps <= limits.PLAN_MAX_STEPS
    facts = plans.facts()
    assert taken + sum(facts["refused_messages"].values()) == len(messages)
    assert all(0 < plan["kept_steps"] <= limits.PLAN_MAX_STEPS for plan in facts["active"])
    assert len(facts["active"]) <= limits.PLANS_MAX


ranges = st.builds(
    PlannedRange,
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=30).filter(
        lambda text: not text.startswith(("#", "{"))
    ),
    st.integers(0, 1 << 40),
    st.integers(1, 1 << 40),
)


@given(st.lists(ranges, max_size=20))
def test_plan_files_read_back(said: list[PlannedRange]) -> None:
    text = "# a plan\n\n" + "".join(f"{path}\t{offset} {length}\n" for path, offset, length in said)
    assert list(read_plan_file(text.encode().splitlines(keepends=True))) == said
