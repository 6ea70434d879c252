"""The kernel's readahead of one mount, as sysfs shows it: what is in force, and setting another (for files opened later)."""

from __future__ import annotations

from pathlib import Path

_BDI = Path("/sys/class/bdi")


class KernelReadAhead:
    """Of the mount with this device minor. Writing needs root and a writable /sys (containers often have neither)."""

    def __init__(self, minor: int, directory: Path = _BDI) -> None:
        self.path = directory / f"0:{minor}" / "read_ahead_kb"

    def kib(self) -> int | None:
        """What files opened now get; None where it cannot be seen."""
        try:
            return int(self.path.read_text("ascii"))
        except (OSError, ValueError):
            return None

    def set_kib(self, kib: int) -> None:
        """Raises OSError. The write ends in the kernel at once, without asking the mount."""
        self.path.write_text(f"{kib}\n", "ascii")
