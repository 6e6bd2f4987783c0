"""TLS for TCP listeners: the certificate comes from files, and anew from them once they have changed.

The files are looked at when a client connects, so a replaced certificate is in use from the next connection on, and the
connections that are open go on with the one that they began with. Files that cannot be used (one is replaced before the
other, say) leave the last good ones in use.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from extproc.transport.listening import ListenError

_log = logging.getLogger(__name__)

ALPN = "h2"

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files."""

    certificate: Path
    """Our certificate, and those between it and its authority."""

    key: Path
    """Its private key, not encrypted."""

    client_ca: Path | None = None
    """Authorities of clients' certificates. With it, only clients that show such a certificate are served."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.certificate, self.key) if self.client_ca is None else (self.certificate, self.key, self.client_ca)


class Certificates:
    """The files as last loaded. Used from the loop's thread by ngh2's server, and from grpcio's own by the other."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises ListenError where the files cannot be used."""
        self._files = files
        self._refused: _Stamp | None = None
        self._stamp = _stamp(files)
        self.current = _load(files)

    def refresh(self) -> bool:
        """Load the files again if they have changed since. True if what is in use is new."""
        try:
            stamp = _stamp(self._files)
            if stamp == self._stamp:
                return False
            fresh = _load(self._files)
        except ListenError as error:
            self._complain(error)
            return False
        self._stamp, self.current, self._refused = stamp, fresh, None
        _log.info("TLS: %s is in use", self._files.certificate)
        return True

    def server_context(self) -> ssl.SSLContext:
        """For a listener: each handshake takes the certificate that is then in the files."""
        context = _load(self._files)

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            self.refresh()
            connection.context = self.current

        context.sni_callback = choose  # called without a name too
        return context

    def _complain(self, error: ListenError) -> None:
        """Once for each state of the files."""
        try:
            stamp = _stamp(self._files)
        except ListenError:
            stamp = ()
        if stamp != self._refused:
            self._refused = stamp
            _log.error("TLS: the last certificate stays in use: %s", error)


def _stamp(files: TlsFiles) -> _Stamp:
    """Changes whenever one of the files is written, or another is put in its place."""
    try:
        return tuple([(each.st_ino, each.st_mtime_ns, each.st_size) for each in (path.stat() for path in files.paths)])
    except OSError as error:
        raise ListenError(f"{error.filename}: {error.strerror}") from error


def _load(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Envoy's highest towards its upstreams, unless told otherwise
    context.set_alpn_protocols([ALPN])
    # A resumed session would skip the check of a client's certificate against authorities that have changed since.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except OSError as error:  # SSLError is one
        raise ListenError(
            f"{files.certificate} and {files.key}: {_reason(error)}; they must be a certificate chain and its "
            "unencrypted private key, in PEM"
        ) from error
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            raise ListenError(f"{files.client_ca}: {_reason(error)}; it must hold certificates in PEM") from error
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "cannot be read"
    return error.strerror or str(error)


def _no_password() -> bytes:
    """Else OpenSSL asks on the terminal, and the start hangs."""
    return b""
