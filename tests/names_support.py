"""What the tests of the replicated names share: a model tree as a plain dict, small datasets, honest hubs."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from common.entries import Change, Entry, Kind
from common.wire.messages import Changes, SnapshotPage
from spoke.namespace.tree import Tree

CATALOG, OTHER_CATALOG = b"c" * 16, b"d" * 16
Model = dict[bytes, Entry]


def directory(mode: int = 0o755, mtime_ns: int = 1) -> Entry:
    return Entry(Kind.DIRECTORY, mode, 0, mtime_ns)


def file(number: int, size_bytes: int = 10, mode: int = 0o644, mtime_ns: int = 7) -> Entry:
    """A file whose version is made from ``number``."""
    return Entry(Kind.FILE, mode, size_bytes, mtime_ns, number.to_bytes(16, "big"))


def symlink(target: bytes) -> Entry:
    return Entry(Kind.SYMLINK, 0o777, len(target), 3, b"", target)


def contents(tree: Tree) -> Model:
    return {node.path(): node.entry for node in tree.walk() if node is not tree.root}


def change_model(model: Model, path: bytes, entry: Entry | None) -> None:
    """What the change log says a change means."""
    old = model.get(path)
    if entry is None or (old is not None and old.kind is not entry.kind):
        for gone in [name for name in model if name == path or name.startswith(path + b"/")]:
            del model[gone]
    if entry is not None:
        model[path] = entry


def fits(model: Model, path: bytes) -> bool:
    above = path.rpartition(b"/")[0]
    return not above or (above in model and model[above].kind is Kind.DIRECTORY)


def filled(model: Model, revision: int = 5, catalog_id: bytes = CATALOG) -> Tree:
    tree = Tree()
    for path in sorted(model):
        tree.upsert(path, model[path])
    tree.revision, tree.catalog_id = revision, catalog_id
    return tree


def pages(model: Model, revision: int, catalog_id: bytes = CATALOG, page_entries: int = 3) -> list[SnapshotPage]:
    """A snapshot as a hub sends it."""
    rows = sorted(model.items())
    cuts = [rows[at : at + page_entries] for at in range(0, len(rows), page_entries)] or [[]]
    return [
        SnapshotPage(catalog_id, revision, len(rows), number == len(cuts) - 1, tuple(some))
        for number, some in enumerate(cuts)
    ]


def batch(after_revision: int, *steps: tuple[bytes, Entry | None], catalog_id: bytes = CATALOG) -> Changes:
    """Changes at the revisions that follow ``after_revision``."""
    rows = tuple(Change(after_revision + number, path, entry) for number, (path, entry) in enumerate(steps, 1))
    return Changes(catalog_id, after_revision, after_revision + len(rows), rows)


_few_names = st.sampled_from((b"a", b"b", b"c", b"\xff\n"))
few_paths = st.lists(_few_names, min_size=1, max_size=3).map(b"/".join)
few_entries = st.one_of(
    st.builds(directory, st.sampled_from((0o755, 0o700))),
    st.builds(file, st.integers(0, 4), st.integers(0, 3)),
    st.builds(symlink, st.sampled_from((b"x", b"y"))),
)
steps = st.lists(st.tuples(few_paths, st.none() | few_entries), max_size=40)


def fitting(model: Model, wanted: Iterable[tuple[bytes, Entry | None]]) -> list[tuple[bytes, Entry | None]]:
    """The steps an honest change log can hold, applied to ``model``."""
    taken = []
    for path, entry in wanted:
        if entry is None or fits(model, path):
            change_model(model, path, entry)
            taken.append((path, entry))
    return taken
