"""What the two ends of a connection agree on: the protocol version and the codecs, from HELLO and WELCOME."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import ProtocolError, VersionMismatch
from common.wire.messages import TOKEN, Codec, Hello, Welcome


def negotiate(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The highest version both speak. Raises VersionMismatch."""
    common = set(ours) & set(theirs)
    if not common:
        raise VersionMismatch(f"no common protocol version: offered {sorted(theirs)}, spoken here {sorted(ours)}")
    return max(common)


class Handshake:
    """``version``: at the hub from HELLO on, at the spoke from WELCOME on. ``codecs``: what DATA may use, from WELCOME on."""

    def __init__(self, versions: tuple[int, ...]) -> None:
        self.version: int | None = None
        self.codecs: tuple[Codec, ...] = ()
        self._versions = versions
        self._hello: Hello | None = None

    def hello_sent(self, hello: Hello) -> None:
        if hello.versions != self._versions:
            raise ProtocolError(f"HELLO offers versions {hello.versions}, this end speaks {self._versions}")
        self._hello = hello

    def hello_received(self, hello: Hello) -> None:
        """Raises VersionMismatch."""
        self.version = negotiate(self._versions, hello.versions)
        self._hello = hello

    def challenge(self) -> None:
        """Sent or received. Raises ProtocolError when HELLO did not offer to answer one."""
        if self._hello is None or TOKEN not in self._hello.capabilities:
            raise ProtocolError("CHALLENGE to a spoke that offers no token")

    def welcome(self, welcome: Welcome) -> None:
        """Sent or received: hold it against HELLO. Raises ProtocolError."""
        hello = self._hello
        assert hello is not None
        if welcome.dataset != hello.dataset:
            raise ProtocolError(f"WELCOME to dataset {welcome.dataset!r} instead of {hello.dataset!r}")
        if not set(welcome.codecs) <= set(hello.codecs):
            raise ProtocolError("WELCOME agrees to a codec that HELLO did not offer")
        if welcome.version not in hello.versions or self.version not in (None, welcome.version):
            raise ProtocolError(f"WELCOME names version {welcome.version}, which is not the one to agree on")
        self.version = welcome.version
        self.codecs = welcome.codecs

    def check_codec(self, codec: Codec) -> None:
        if codec not in self.codecs:
            raise ProtocolError(f"codec {codec.name} was not agreed on")
