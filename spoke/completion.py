"""What the shell offers for arguments: mounts of ours. Reads /proc alone, so that a mount that hangs does not hang the shell."""

from __future__ import annotations

from pathlib import Path


def complete_mountpoint(incomplete: str) -> list[str]:
    """Mountpoints of Headrace that begin so."""
    from spoke.fuse.mountpoint import parse_mountinfo

    try:
        entries = parse_mountinfo(Path("/proc/self/mountinfo").read_bytes())
    except OSError:
        return []
    return sorted({entry.path for entry in entries if entry.is_ours and entry.path.startswith(incomplete)})
