"""The dataset at the hub: a real directory, edited by the simulation, and told to the model and to the simulated kernel's stamps."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from random import Random

from bench.simulation.disks import SimStat, Stamps
from bench.simulation.model import State, Truth
from bench.simulation.trace import Trace

FILES_MAX = 40
"""Below what makes a hub suspicious (100 names), whatever is removed."""


class Dataset:
    """``on_change`` is called after each edit: the kernel has queued its events by then."""

    def __init__(
        self,
        root: str,
        truth: Truth,
        stamps: Stamps,
        dice: Random,
        trace: Trace,
        clock: Callable[[], float],
        large_bytes: int,
    ) -> None:
        self.root = os.fsencode(root)
        self.truth, self.stamps, self._dice, self._trace, self._clock = truth, stamps, dice, trace, clock
        self._large_bytes = large_bytes
        self._states = 0
        self._names = 0
        self.hot: deque[bytes] = deque(maxlen=3)
        """Paths that somebody opened just now: where edits hurt most."""
        self._wanted: bytes | None = None
        self.on_change: Callable[[], None] = lambda: None
        os.mkdir(self.root)
        stamps.made(self.root)

    # --- names ----------------------------------------------------------------------------------------------

    def _full(self, path: bytes) -> bytes:
        return os.path.join(self.root, path) if path else self.root

    def _parent_changed(self, path: bytes) -> None:
        self.stamps.changed(self._full(os.path.dirname(path)))

    def directories(self) -> list[bytes]:
        """All of them, the root (empty) first."""
        found = [b""]
        for directory in found:
            full = self._full(directory)
            for name in sorted(os.listdir(full)):
                path = os.path.join(directory, name)
                if os.path.isdir(self._full(path)) and not os.path.islink(self._full(path)):
                    found.append(path)
        return found

    def _new_path(self, stem: bytes = b"f") -> bytes:
        self._names += 1
        name = b"%s%02d" % (stem, self._names)
        if self._dice.random() < 0.1:
            name += b"-\xff \xc3\xa4"
        return os.path.join(self._dice.choice(self.directories()), name)

    def _state(self, content: bytes) -> State:
        self._states += 1
        return State(self._states, content)

    def _size(self) -> int:
        dice = self._dice
        kind = dice.random()
        if kind < 0.1:
            return dice.choice([0, 1, 4095, 4096, 4097, 8192])
        if kind < 0.7:
            return dice.randint(1, 64 * 1024)
        if kind < 0.95:
            return dice.randint(64 * 1024, 600 * 1024)
        return dice.randint(1 << 20, self._large_bytes)

    # --- edits ----------------------------------------------------------------------------------------------

    def fill(self, files: int, large: int) -> None:
        """What is there at the start."""
        for _ in range(self._dice.randint(0, 3)):
            self.make_directory()
        for number in range(files):
            size_bytes = (
                self._dice.randint(self._large_bytes // 2, self._large_bytes) if number < large else self._size()
            )
            self.create(size_bytes)
        if self._dice.random() < 0.5:
            self.link()

    def edit(self) -> None:
        """One change by dice."""
        kinds = {
            self.overwrite: 6, self.resize: 3, self.replace: 4, self.create: 4, self.remove: 2, self.rename: 3,
            self.rename_directory: 1, self.remove_directory: 0.3, self.make_directory: 1, self.touch: 1, self.link: 0.5,
            self.overwrite_twice: 2,
        }  # fmt: skip
        kind = self._dice.choices(list(kinds), list(kinds.values()))[0]
        kind()
        self.on_change()

    def edit_file(self, path: bytes) -> None:
        """One change of this file by dice."""
        self.hot.append(path)
        kinds = [self.overwrite, self.overwrite, self.overwrite_twice, self.resize, self.replace, self.rename]
        self._wanted = path
        self._dice.choice(kinds)()
        self._wanted = None
        self.on_change()

    def _some_file(self) -> bytes | None:
        if self._wanted is not None:
            return self._wanted
        if self.hot and self._dice.random() < 0.4 and self.truth.current(self.hot[-1]) is not None:
            return self.hot[-1]
        files = self.truth.files()
        return self._dice.choice(files) if files else None

    def _did(self, what: str, path: bytes, *facts: object) -> None:
        self._trace.event(f"dataset: {what}", path, *facts)

    def create(self, size_bytes: int | None = None) -> None:
        if len(self.truth.files()) >= FILES_MAX:
            return
        path = self._new_path()
        state = self._state(self._dice.randbytes(self._size() if size_bytes is None else size_bytes))
        with open(self._full(path), "wb") as file:
            file.write(state.content)
        self.stamps.made(self._full(path))
        self._parent_changed(path)
        self.truth.hold(path, state, self._clock())
        self._did("created", path, state.number, len(state.content))

    def _written(self, path: bytes, content: bytes, what: str) -> None:
        state = self._state(content)
        self.stamps.changed(self._full(path))
        self.truth.hold(path, state, self._clock())
        self._did(what, path, state.number, len(content))

    def overwrite(self, path: bytes | None = None) -> None:
        """In place: the same size, some bytes others."""
        path = path or self._some_file()
        before = self.truth.current(path) if path is not None else None
        if path is None or before is None or not before.content:
            return
        content = bytearray(before.content)
        start = self._dice.randrange(len(content))
        end = self._dice.choice([len(content), min(len(content), start + self._dice.randint(1, 9000))])
        content[start:end] = self._dice.randbytes(end - start)
        fd = os.open(self._full(path), os.O_WRONLY)
        os.pwrite(fd, content[start:end], start)
        os.close(fd)
        self._written(path, bytes(content), "overwritten")

    def overwrite_twice(self) -> None:
        """Two edits within one tick of the kernel's clock: nothing about the file tells them apart."""
        path = self._some_file()
        if path is not None:
            self.overwrite(path)
            self.on_change()
            self.overwrite(path)

    def resize(self) -> None:
        path = self._some_file()
        before = self.truth.current(path) if path is not None else None
        if path is None or before is None:
            return
        size_bytes = self._dice.choice([0, self._dice.randint(0, len(before.content)), len(before.content) + 5000])
        os.truncate(self._full(path), size_bytes)
        content = before.content[:size_bytes]
        self._written(path, content + bytes(size_bytes - len(content)), "resized")

    def replace(self) -> None:
        """As most writers do: a new file, renamed over the old one."""
        path = self._some_file()
        if path is None:
            return
        state = self._state(self._dice.randbytes(self._size()))
        temporary = self._full(path) + b".new"
        with open(temporary, "wb") as file:
            file.write(state.content)
        self.stamps.made(temporary)
        self.stamps.changed(self._full(path), content=False)  # the old file, which somebody may have open
        os.rename(temporary, self._full(path))
        self.stamps.changed(self._full(path), content=False)
        self._parent_changed(path)
        self.truth.hold(path, state, self._clock())
        self._did("replaced", path, state.number, len(state.content))

    def remove(self) -> None:
        path = self._some_file()
        if path is None:
            return
        self.stamps.changed(self._full(path), content=False)
        os.unlink(self._full(path))
        self._parent_changed(path)
        self.truth.drop(path, self._clock())
        self._did("removed", path)

    def rename(self) -> None:
        path = self._some_file()
        if path is None:
            return
        others = self.truth.files()
        to = self._dice.choice(others) if self._dice.random() < 0.2 else self._new_path()
        state = self.truth.current(path)
        if to is None or to == path or state is None:
            return
        if os.path.lexists(self._full(to)):
            self.stamps.changed(self._full(to), content=False)
        os.rename(self._full(path), self._full(to))
        self.stamps.changed(self._full(to), content=False)
        self._parent_changed(path)
        self._parent_changed(to)
        self._may_be_another(path, to)
        self._did("renamed", path, to)

    def _may_be_another(self, path: bytes, to: bytes) -> None:
        """The bytes are what they were, and the version may be another (for a hub that did not see how it came)."""
        before = self.truth.current(path)
        assert before is not None
        self.truth.drop(path, self._clock())
        self.truth.hold(to, self._state(before.content), self._clock())

    def make_directory(self) -> None:
        if len(self.directories()) > 6:
            return
        path = self._new_path(b"d")
        os.mkdir(self._full(path))
        self.stamps.made(self._full(path))
        self._parent_changed(path)
        self._did("directory made", path)

    def rename_directory(self) -> None:
        found = self.directories()[1:]
        if not found:
            return
        path, to = self._dice.choice(found), self._new_path(b"d")
        if to.startswith(path + b"/"):
            return
        os.rename(self._full(path), self._full(to))
        self.stamps.changed(self._full(to), content=False)
        self._parent_changed(path)
        self._parent_changed(to)
        for file in self.truth.files():
            state = self.truth.current(file)
            if file.startswith(path + b"/") and state is not None:
                self.truth.drop(file, self._clock())
                self.truth.hold(to + file[len(path) :], state, self._clock())
        self._did("directory renamed", path, to)

    def remove_directory(self) -> None:
        found = self.directories()[1:]
        if not found:
            return
        path = self._dice.choice(found)
        for file in self.truth.files():
            if file.startswith(path + b"/"):
                self.stamps.changed(self._full(file), content=False)
                self.truth.drop(file, self._clock())
        shutil.rmtree(self._full(path))
        self._parent_changed(path)
        self._did("directory removed", path)

    def touch(self) -> None:
        """Another time or mode, the same bytes."""
        path = self._some_file()
        if path is None:
            return
        if self._dice.random() < 0.5:
            os.utime(self._full(path))
            self.stamps.changed(self._full(path))
        else:
            os.chmod(self._full(path), self._dice.choice([0o644, 0o600, 0o755]))
            self.stamps.changed(self._full(path), content=False)
        self._may_be_another(path, path)
        self._did("touched", path)

    def link(self) -> None:
        path = self._new_path(b"l")
        os.symlink(self._dice.choice([b"f01", b"../f", b"nowhere"]), self._full(path))
        self.stamps.made(self._full(path))
        self._parent_changed(path)
        self._did("symlink made", path)

    # --- what is there --------------------------------------------------------------------------------------

    def tree(self) -> dict[bytes, tuple[str, int, int, int, bytes]]:
        """Path to (kind, mode, size in bytes, mtime in ns, a symlink's target)."""
        found: dict[bytes, tuple[str, int, int, int, bytes]] = {}
        for directory in self.directories():
            for name in sorted(os.listdir(self._full(directory))):
                path = os.path.join(directory, name)
                seen: SimStat = self.stamps.translate(os.lstat(self._full(path)))
                mode = seen.st_mode & 0o7777
                if os.path.islink(self._full(path)):
                    target = os.readlink(self._full(path))
                    found[path] = ("SYMLINK", mode, len(target), seen.st_mtime_ns, target)
                elif os.path.isdir(self._full(path)):
                    found[path] = ("DIRECTORY", mode, 0, seen.st_mtime_ns, b"")
                else:
                    found[path] = ("FILE", mode, seen.st_size, seen.st_mtime_ns, b"")
        return found
