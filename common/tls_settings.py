"""The settings by which either daemon shows who it is: certificates, and a shared token."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import field_validator, model_validator

from common.config import Settings
from common.errors import UsageError
from common.tls import TlsFiles, tls_files


class TlsSettings(Settings):
    """``tls_cert``, ``tls_key``, ``tls_ca``: together, speak TLS, with whoever shows a certificate that leads to that CA.
    ``token_file``: the token in it is proven both ways."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token_file: Path | None = None

    @property
    def tls(self) -> TlsFiles | None:
        return tls_files(self.tls_cert, self.tls_key, self.tls_ca)

    @model_validator(mode="after")
    def _tls_together(self) -> Self:
        try:
            tls_files(self.tls_cert, self.tls_key, self.tls_ca)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return self

    @field_validator("tls_cert", "tls_key", "tls_ca", "token_file")
    @classmethod
    def _absolute_tls(cls, value: Path | None) -> Path | None:
        """As ``status`` shows it to people in other directories; a link in it is left as it is."""
        return value.absolute() if value is not None else None
