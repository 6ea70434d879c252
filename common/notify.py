"""What sd_notify(3) messages look like and where they go. Imports nothing, so that also a supervisor that must stay small can speak."""

from __future__ import annotations

from collections.abc import MutableMapping


def message(**fields: str | int) -> bytes:
    """``NAME=value`` lines; line ends within a value become spaces, as one would begin another field."""
    return "\n".join(f"{name}={' '.join(str(value).splitlines())}" for name, value in fields.items()).encode()


def socket_address(text: str) -> str | None:
    """Of NOTIFY_SOCKET: a path, or ``@name`` in the abstract namespace. None for what is neither (vsock is not spoken)."""
    if text.startswith("/"):
        return text
    return "\0" + text[1:] if text.startswith("@") and len(text) > 1 else None


def watchdog_s(environ: MutableMapping[str, str], pid: int) -> float | None:
    """Seconds after which systemd takes process ``pid`` for hung; None when it does not watch it."""
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isdecimal() or int(text) == 0 or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(text) / 1e6
