"""The certificate of `baton gateway`: read before anything starts, and again on SIGHUP."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.errors import ConfigRefused

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("baton.gateway.tls")


@dataclass(frozen=True)
class Tls:
    """A certificate chain and its private key, PEM files."""

    cert: Path
    key: Path

    @classmethod
    def checked(cls, cert: Path | None, key: Path | None) -> Tls:
        """Both files, once they have been read.

        Raises:
            ConfigRefused: One is missing, or they do not hold.
        """
        if cert is None or key is None:
            raise ConfigRefused(
                "TLS needs a certificate and its key",
                place="--tls-cert" if key is None else "--tls-key",
                cure="give both --tls-cert and --tls-key",
            )
        tls = cls(cert, key)
        tls.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return tls

    def load_into(self, context: ssl.SSLContext) -> None:
        """Read the files; new connections of the context get them.

        Raises:
            ConfigRefused: They cannot be read, or do not belong together.
        """
        try:
            context.load_cert_chain(self.cert, self.key, password=self._no_password)
        except ssl.SSLError as exc:
            raise ConfigRefused(
                f"the certificate and its key do not hold: {exc.reason or exc}",
                place=f"{self.cert}, {self.key}",
            ) from exc
        except OSError as exc:
            raise ConfigRefused(
                f"the certificate or its key cannot be read: {exc.strerror}",
                place=f"{self.cert}, {self.key}",
            ) from exc

    def _no_password(self) -> str:
        # Without this OpenSSL asks at the terminal, and a gateway without one would hang.
        raise ConfigRefused(
            "the private key is encrypted", place=str(self.key), cure="give it unencrypted"
        )

    def renew(self, context: ssl.SSLContext) -> None:
        """Read the files again; what does not hold changes nothing and is said loudly."""
        try:
            # A bad pair must not reach the context in use: it would keep half of it.
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self.load_into(context)
        except ConfigRefused as exc:
            log.error(  # noqa: TRY400  (the message is the whole story)
                "the new certificate does not hold; the old one stays in use: %s", exc
            )
        else:
            log.warning("the certificate was read anew")
