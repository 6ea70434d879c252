from pathlib import Path

import pytest

from common.config import SETTING_NAMES, Address, DurationS, Settings, SizeBytes, load
from common.errors import UsageError
from hub.config import HubSettings
from spoke.config import SpokeSettings


class Some(Settings):
    cache_dir: Path
    cache_size: SizeBytes = 0
    read_timeout: DurationS = 300.0
    hub: Address = "h:1"


def test_the_highest_layer_wins_and_is_remembered(tmp_path: Path) -> None:
    file = tmp_path / "spoke.toml"
    file.write_text('cache-dir = "/file"\ncache-size = "1GiB"\nread-timeout = 5\n')
    loaded = load(
        Some,
        file=file,
        environ={"HEADRACE_CACHE_SIZE": "2GiB", "HEADRACE_READ_TIMEOUT": "6s", "HEADRACE_UNRELATED": "x"},
        flags={"read_timeout": "7s", "cache_size": None},
    )
    assert loaded.settings == Some(cache_dir=Path("/file"), cache_size=2 << 30, read_timeout=7.0)
    assert loaded.sources == {
        "cache_dir": "file",
        "cache_size": "environment",
        "read_timeout": "flag",
        "hub": "default",
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, r"cache-dir is not set; .*HEADRACE_CACHE_DIR"),
        ({"cache_dir": "/x", "cache_size": "10 parsecs"}, r"cache-size \(from the flag\): '10 parsecs' is not a size"),
        ({"cache_dir": "/x", "hub": "nowhere:port"}, r"hub \(from the flag\): .* is not an address"),
    ],
)
def test_a_refusal_says_what_was_seen_and_what_is_allowed(flags: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(Some, file=None, environ={}, flags=flags)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"revision": -4}, r"revision \(from the flag\): found -4: .*greater than or equal to 0"),
        ({"consistency": "eventual"}, r"found 'eventual': .*'lease' or 'strict'"),
        ({"revision": 3, "snapshot": "v1"}, r"\Arevision and snapshot exclude each other"),
    ],
)
def test_bounds_and_choices_say_what_was_seen(flags: dict[str, object], said: str, tmp_path: Path) -> None:
    needed = {"hub": "h:1", "dataset": "c4", "cache_dir": tmp_path}
    with pytest.raises(UsageError, match=said):
        load(SpokeSettings, file=None, environ={}, flags={**needed, **flags})


def test_unknown_names_in_the_file_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('cache-dri = "/x"\n')
    with pytest.raises(
        UsageError, match=r"unknown setting 'cache-dri' .* allowed: cache-dir, cache-size, hub, read-timeout"
    ):
        load(Some, file=file, environ={}, flags={"cache_dir": "/x"})


def test_a_file_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the configuration file"):
        load(Some, file=tmp_path / "none", environ={}, flags={})
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"= \xff")
    with pytest.raises(UsageError, match="is not TOML"):
        load(Some, file=bad, environ={}, flags={})


def test_a_misspelt_variable_is_told_with_the_nearest_name() -> None:
    environ = {
        "HEADRACE_CACH_SIZE": "1GiB",
        "HEADRACE_READ_TIMOUT": "6s",
        "HEADRACE_SOMETHING_ELSE_ENTIRELY": "x",
        "HEADRACE_STATE_DIR": "/the/other/daemons",
        "HEADRACE_HUB_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_HUB_PORT": "tcp://10.0.0.1:7420",
        "HEADRACE_PORT_7420_TCP_ADDR": "10.0.0.1",
        "PATH": "/bin",
    }
    loaded = load(Some, file=None, environ=environ, flags={"cache_dir": "/x"})
    assert loaded.warnings == (
        "HEADRACE_CACH_SIZE is set and means nothing here: did you mean HEADRACE_CACHE_SIZE?",
        "HEADRACE_READ_TIMOUT is set and means nothing here: did you mean HEADRACE_READ_TIMEOUT?",
        "HEADRACE_SOMETHING_ELSE_ENTIRELY is set and means nothing here: no setting has a name like it",
    )


def test_the_settings_of_both_daemons_are_known() -> None:
    assert {*HubSettings.model_fields, *SpokeSettings.model_fields} == SETTING_NAMES
