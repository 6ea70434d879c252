"""Real certificates for tests, made by the ``openssl`` command: a CA, and what it signs, for any names and any time."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from common.tls import TlsFiles

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")


def _openssl(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Authority(NamedTuple):
    """A CA in a directory of its own."""

    directory: Path

    @property
    def cert(self) -> Path:
        return self.directory / "ca.pem"

    def issue(
        self,
        name: str,
        alternative: str = "",
        *,
        not_before: str = "20200101000000Z",
        not_after: str = "20990101000000Z",
    ) -> TlsFiles:
        """A certificate and key for ``name``; ``alternative`` as openssl writes it (``DNS:hub,IP:127.0.0.1``)."""
        where = Path(tempfile.mkdtemp(dir=self.directory))
        names = f"subjectAltName={alternative}" if alternative else "keyUsage=digitalSignature"
        (where / "ext").write_text(f"{names}\n")
        _openssl(*_new_key(name), "-new", "-out", "request.pem", cwd=where)
        (where / "index").touch()
        (where / "ca.cnf").write_text(
            "[ca]\ndefault_ca=c\n[c]\nnew_certs_dir=.\ndatabase=index\nrand_serial=yes\ndefault_md=sha256\npolicy=p\n"
            "unique_subject=no\n[p]\ncommonName=supplied\n"
        )
        _openssl(
            *(
                "ca",
                "-config",
                "ca.cnf",
                "-batch",
                "-notext",
                "-in",
                "request.pem",
                "-out",
                "cert.pem",
                "-extfile",
                "ext",
            ),
            *("-startdate", not_before, "-enddate", not_after, "-cert", "../ca.pem", "-keyfile", "../ca.key"),
            cwd=where,
        )
        return TlsFiles(where / "cert.pem", where / "key.pem", self.cert)

    def self_signed(self, name: str, alternative: str) -> TlsFiles:
        """By nobody but itself; believes this CA."""
        where = Path(tempfile.mkdtemp(dir=self.directory))
        _openssl(
            *_new_key(name), "-x509", "-days", "30", "-out", "cert.pem", "-addext", f"subjectAltName={alternative}",
            cwd=where,
        )  # fmt: skip
        return TlsFiles(where / "cert.pem", where / "key.pem", self.cert)


def _new_key(name: str) -> tuple[str, ...]:
    return (
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key.pem"),
        *("-subj", f"/CN={name}"),
    )


def make_authority(directory: Path, name: str = "test CA") -> Authority:
    directory.mkdir(exist_ok=True)
    _openssl(*_new_key(name), "-x509", "-days", "3650", "-out", "ca.pem", cwd=directory)
    (directory / "key.pem").rename(directory / "ca.key")
    return Authority(directory)


@cache
def shared() -> Authority:
    """One for all tests of a run: making keys takes most of their time."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-test-ca-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return make_authority(directory)


@cache
def issued(name: str, alternative: str = "") -> TlsFiles:
    """From the shared CA, made once."""
    return shared().issue(name, alternative)


def hub_files() -> TlsFiles:
    return issued("hub", "DNS:localhost,IP:127.0.0.1")


def spoke_files(name: str = "spoke-a") -> TlsFiles:
    return issued(name, f"DNS:{name}")
