"""Secrets do not leave in a bug report, whatever they stand in."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from common.redact import LEFT_OUT, is_secret_name, scrubbed, without_secrets


def test_names_that_speak_of_secrets() -> None:
    for name in (
        "token",
        "auth_token",
        "HEADRACE_TOKEN",
        "tls_key",
        "key-file",
        "password",
        "api_key",
        "Authorization",
        "client_secret",
    ):
        assert is_secret_name(name), name
    for name in ("author", "monkey", "keys_total", "cache_dir", "identity", "hub"):
        assert not is_secret_name(name), name


def test_values_under_such_names_go_and_whether_they_were_set_stays() -> None:
    status = {
        "settings": {
            "token": {"value": "t0k3n-value", "source": "environment"},
            "tls_key": {"value": None, "source": "default"},
            "hub": {"value": "10.0.0.1:7420", "source": "flag"},
        },
        "credentials": {"user": "u", "pass": "deep-inside"},
        "lines": ["token=abcdef123", 7, None],
    }
    text = json.dumps(without_secrets(status))
    assert "t0k3n-value" not in text
    assert "deep-inside" not in text
    assert "abcdef123" not in text
    clean = without_secrets(status)
    assert clean["settings"]["token"] == {"value": LEFT_OUT, "source": "environment"}
    assert clean["settings"]["tls_key"] == {"value": None, "source": "default"}
    assert clean["settings"]["hub"]["value"] == "10.0.0.1:7420"


def test_secrets_in_text_by_their_looks() -> None:
    text = """
    -----BEGIN PRIVATE KEY-----
    MIIEvQIBADANBgkqhkiG9w0BAQEFAASC
    -----END PRIVATE KEY-----
    Authorization: Bearer abcdefgh.ijklmnop
    {"hub_token": "qwertyuiop", "event": "linked", "password":"p4ss word"}
    aws AKIAABCDEFGHIJKLMNOP jwt eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM url https://user:hunter2@host/path
    """
    clean = scrubbed(text)
    for secret in (
        "MIIEvQ",
        "abcdefgh.ijklmnop",
        "qwertyuiop",
        "p4ss",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJI",
        "hunter2",
    ):
        assert secret not in clean, clean
    assert '"event": "linked"' in clean
    assert "BEGIN RSA" not in scrubbed("-----BEGIN RSA PRIVATE KEY-----\ncut off in the log")
    assert "cut off" not in scrubbed("-----BEGIN RSA PRIVATE KEY-----\ncut off in the log")


def test_plain_log_lines_stay_as_they_are() -> None:
    line = '{"module": "spoke.reads", "path": "a/b.bin", "offset_bytes": 4096, "event": "a read waits for the hub"}'
    assert scrubbed(line) == line


@given(st.text(alphabet="abcXYZ019-_./=", min_size=6, max_size=40), st.text(max_size=60), st.text(max_size=60))
def test_a_known_secret_is_nowhere(secret: str, before: str, after: str) -> None:
    assert secret not in scrubbed(before + secret + after, [secret]).replace(LEFT_OUT, "")
