"""Certificates of one end: TLS contexts made from files, made anew when the files change, and what an error of TLS means.

Mutual TLS 1.3 and nothing older: each end shows a certificate, and believes those that lead to its ``ca``. New connections use
what the files hold at that moment; files that cannot be used leave the last good ones in force, with a line in the log.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from common import limits
from common.errors import AuthenticationFailed, UsageError
from common.log import get_logger

log = get_logger(__name__)

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_Signature = tuple[tuple[int, int, int], ...]


class TlsFiles(NamedTuple):
    """PEM files: this end's certificate (and what leads from it to its CA), its key, and the CAs that the other end's must lead to."""

    cert: Path
    key: Path
    ca: Path


def tls_files(cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    """None when none is given. Raises UsageError when some are."""
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        given = {"tls-cert": cert, "tls-key": key, "tls-ca": ca}
        missing = ", ".join(name for name, path in given.items() if path is None)
        raise UsageError(
            f"TLS needs tls-cert, tls-key and tls-ca together (both ends show a certificate); missing: {missing}"
        )
    return TlsFiles(cert, key, ca)


class Certificates:
    """Raises UsageError at once when the files cannot be used. ``wall_time_s``: the clock by which certificates expire.

    ``may_wait``: files that cannot be used yet are no reason not to begin; until they can, each connection is refused with the reason.
    """

    def __init__(self, files: TlsFiles, wall_time_s: Callable[[], float], *, may_wait: bool = False) -> None:
        self._files = files
        self._wall_time_s = wall_time_s
        self.expires_s = 0.0
        """When this end's certificate does, in seconds since 1970."""
        self.reloads_total = 0
        self._signature: _Signature = ()
        self._tried: _Signature = ()
        self._contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
        self._failure = ""
        try:
            self._tried = self._look()
            self._contexts = self._load()
            self._signature = self._tried
        except UsageError as error:
            if not may_wait:
                raise
            self._failure = str(error)
            log.error("the TLS files cannot be used; without them no connection is made", error=str(error))

    def server(self) -> ssl.SSLContext:
        """For a connection that was accepted now."""
        return self._current()[0]

    def client(self) -> ssl.SSLContext:
        """For a connection dialled now: the other end's certificate must name the host that was dialled."""
        return self._current()[1]

    def _current(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        self.refresh()
        if self._contexts is None:
            raise AuthenticationFailed(self._failure)
        return self._contexts

    @property
    def left_s(self) -> float:
        """Seconds until this end's certificate expires; below 0 once it has."""
        return self.expires_s - self._wall_time_s()

    def refresh(self) -> None:
        """Take in files that changed."""
        try:
            signature = self._look()
        except UsageError as error:
            if self._tried:
                self._tried = ()
                log.error("the TLS files cannot be read, going on with those read before", error=str(error))
            return
        if signature in (self._signature, self._tried):
            return
        self._tried = signature
        try:
            self._contexts = self._load()
        except UsageError as error:
            # A certificate is often replaced a moment before its key: the next look finds both.
            self._failure = str(error)
            log.error("the new TLS files cannot be used, going on with those read before", error=str(error))
            return
        self._signature = signature
        self.reloads_total += 1
        log.info("TLS files were read anew", cert=str(self._files.cert), left_s=round(self.left_s))

    def _look(self) -> _Signature:
        found = []
        for path in self._files:
            try:
                facts = os.stat(path)
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror}") from None
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return tuple(found)

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        check_private(self._files.key, "TLS key")
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.num_tickets = 0  # sessions are not resumed: each connection shows its certificate
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            self._fill(context)
        self.expires_s = _expires_s(self._files.cert)
        if self.left_s < limits.CERTIFICATE_WARN_S:
            log.warning(
                "this end's certificate has expired, the other end will refuse it; put a new one in its place"
                if self.left_s <= 0
                else "this end's certificate expires soon; put a new one in its place, it is read by itself",
                cert=str(self._files.cert),
                expires=datetime.fromtimestamp(self.expires_s, UTC).isoformat(),
            )
        return server, client

    def _fill(self, context: ssl.SSLContext) -> None:
        cert, key, ca = self._files
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"certificate {cert} with key {key}: {_said(error)}; both must be PEM, of one pair, the key not encrypted"
            ) from None
        try:
            context.load_verify_locations(cafile=ca)
        except OSError as error:
            raise UsageError(f"CA file {ca}: {_said(error)}; it must hold PEM certificates") from None


def check_private(path: Path, what: str) -> None:
    """Raises UsageError for a secret that others may read, or change."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise UsageError(f"{what} {path} is not a file")
    if mode & 0o037:
        raise UsageError(
            f"{what} {path} has mode {stat.S_IMODE(mode):04o}: others may read or change it; allowed is at most 0640: "
            f"chmod 600 {path}"
        )


def identities_of(peer_certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names a certificate (as ``getpeercert`` gives it) stands for: URIs and DNS names of its subjectAltName, then common names."""
    if not peer_certificate:
        return ()
    alternative: Sequence[tuple[str, str]] = peer_certificate.get("subjectAltName", ())
    named = [value for wanted in ("URI", "DNS") for kind, value in alternative if kind == wanted]
    subject: Sequence[Sequence[tuple[str, str]]] = peer_certificate.get("subject", ())
    named += [value for part in subject for key, value in part if key == "commonName"]
    fit = (name for name in named if name.isprintable() and 0 < len(name.encode()) <= limits.TEXT_MAX_BYTES)
    return tuple(dict.fromkeys(fit))


def expiry_of(peer_certificate: Mapping[str, Any]) -> float:
    """When a certificate (as ``getpeercert`` gives it) expires, in seconds since 1970."""
    return float(ssl.cert_time_to_seconds(str(peer_certificate["notAfter"])))


_ALERTS = {
    "CERTIFICATE_EXPIRED": "it finds this end's certificate expired: renew it (a clock that is wrong looks alike)",
    "UNKNOWN_CA": "this end's certificate does not lead to the CA it was given: use one signed by that CA, or have it given ours (tls-ca)",
    "CERTIFICATE_REQUIRED": "it wants a certificate and got none: give --tls-cert and --tls-key",
    "BAD_CERTIFICATE": "it finds this end's certificate bad: it must be made for this use (extendedKeyUsage) and not be revoked",
    "CERTIFICATE_UNKNOWN": "it does not believe this end's certificate: see its log",
    "UNSUPPORTED_CERTIFICATE": "this end's certificate was not made for this use: clientAuth for a spoke, serverAuth for a hub",
    "CERTIFICATE_REVOKED": "this end's certificate was revoked",
    "DECRYPT_ERROR": "this end's certificate and key are not what they say: make them anew",
    "PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "INTERNAL_ERROR": "it failed: see its log",
    "HANDSHAKE_FAILURE": "the two share no way to speak TLS 1.3",
}
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "BAD_RECORD_TYPE",
    "PACKET_LENGTH_TOO_LONG",
    "UNEXPECTED_MESSAGE",
)


def explain(error: ssl.SSLError, peer: str) -> AuthenticationFailed:
    """What was seen and what to do. ``peer``: the other end, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailed(f"the certificate of {peer} is refused: {_unbelieved(error.verify_message)}")
    reason = error.reason or str(error)
    if "ALERT" in reason:
        told = next((text for name, text in _ALERTS.items() if name in reason), f"it says {_words(reason)}")
        return AuthenticationFailed(f"{peer} refused this end: {told}")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return AuthenticationFailed(f"{peer} showed no certificate; it needs --tls-cert and --tls-key")
    if any(name in reason for name in _NOT_TLS):
        return AuthenticationFailed(f"{peer} does not speak TLS: give both ends certificates, or neither")
    if "UNSUPPORTED_PROTOCOL" in reason or "VERSION" in reason:
        return AuthenticationFailed(f"{peer} does not offer TLS 1.3, which alone is spoken here")
    return AuthenticationFailed(f"TLS with {peer} failed: {_words(reason)}")


def _unbelieved(seen: str) -> str:
    seen = seen.rstrip(".")
    if "expired" in seen:
        return f"{seen}; renew it (a clock that is wrong looks alike)"
    if "mismatch" in seen:
        return f"{seen}; dial a name that it has (subjectAltName), say with --tls-name which one it should have, or make it anew"
    if "self-signed" in seen or "self signed" in seen or "issuer" in seen:
        return f"{seen}; it must lead to a certificate in the file of tls-ca"
    if "not yet valid" in seen:
        return f"{seen}; look at the clocks"
    return seen


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return _words(error.reason) if error.reason else str(error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _expires_s(cert: Path) -> float:
    """Of the first certificate in the file. Raises UsageError."""
    try:
        found = _PEM.search(cert.read_text("ascii", "replace"))
        if found is None:
            raise ValueError("no certificate in it")
        return _not_after_s(ssl.PEM_cert_to_DER_cert(found[0]))
    except (OSError, ValueError, IndexError) as error:
        raise UsageError(f"certificate {cert}: {_said(error)}") from None


def _not_after_s(der: bytes) -> float:
    """notAfter of an X.509 certificate (RFC 5280, 4.1): Certificate > tbsCertificate > validity > the second time."""
    start, _ = _inside(der, 0)
    at, _ = _inside(der, start)
    if der[at] == 0xA0:  # version, explicit
        at = _after(der, at)
    for _ in range(3):  # serialNumber, signature, issuer
        at = _after(der, at)
    at, _ = _inside(der, at)
    at = _after(der, at)  # notBefore
    start, end = _inside(der, at)
    text = der[start:end].decode("ascii")
    if der[at] == 0x17:  # UTCTime: two digits of a year from 1950 on
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _inside(der: bytes, at: int) -> tuple[int, int]:
    """Begin and end of what the element at ``at`` holds."""
    length, at = der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(der[at : at + count], "big"), at + count
    if at + length > len(der):
        raise ValueError("it ends too soon")
    return at, at + length


def _after(der: bytes, at: int) -> int:
    return _inside(der, at)[1]
