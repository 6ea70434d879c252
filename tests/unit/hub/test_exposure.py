"""Where a hub may listen, and with what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config import load
from common.errors import UsageError
from hub.config import HubSettings
from hub.exposure import check_exposure, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "::ffff:127.0.0.1"])
def test_this_host_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "no-such-name.invalid"])
def test_what_others_reach(host: str) -> None:
    assert not is_loopback(host)


def settings(**flags: Any) -> HubSettings:
    return load(HubSettings, file=None, environ={}, flags={"dataset": ["d=/data"], **flags}).settings


TLS = {"tls_cert": Path("c"), "tls_key": Path("k"), "tls_ca": Path("ca")}


@pytest.mark.parametrize(
    "flags", [{"insecure": True}, {"token_file": Path("t")}, TLS], ids=["insecure", "token", "tls"]
)
def test_the_three_ways_out(flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"other hosts can reach.*--tls-cert.*--token-file.*--insecure"):
        check_exposure(settings(listen="0.0.0.0:7420"))
    check_exposure(settings(listen="0.0.0.0:7420", **flags))
    check_exposure(settings(listen="127.0.0.1:7420"))


@pytest.mark.parametrize("left_out", list(TLS))
def test_tls_wants_all_three_files(left_out: str) -> None:
    given = {name: path for name, path in TLS.items() if name != left_out}
    with pytest.raises(UsageError, match=f"missing: {left_out.replace('_', '-')}"):
        settings(**given)
