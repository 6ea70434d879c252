"""The settings by which either daemon shows who it is: certificates, and a shared token."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from common.config import AbsolutePath, Settings
from common.errors import UsageError
from common.tls import TlsFiles, tls_files


class TlsSettings(Settings):
    """``tls_cert``, ``tls_key``, ``tls_ca``: together, speak TLS, with whoever shows a certificate that leads to that CA.
    ``token_file``: the token in it is proven both ways."""

    tls_cert: AbsolutePath | None = None
    tls_key: AbsolutePath | None = None
    tls_ca: AbsolutePath | None = None
    token_file: AbsolutePath | None = None

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
