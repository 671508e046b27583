"""TLS 1.3 with the gateway of another host, over TCP.

``TrainerTlsChannel`` has the calls of a socket that ``Connection`` makes. An object of OpenSSL serves one
thread at a time. So the channel encrypts and decrypts in memory, under a lock that no thread holds
while it waits for the network.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path
from typing import NamedTuple

from .. import errors
from .._argument_errors import argument_error
from .credential_file import read_credential_file

#: The name of the protocol of trainers' connections (ALPN of TLS), with its version 1. A program
#: that answers without this name is no gateway for trainers, and is refused.
_ALPN = "landbridge-attach/1"
#: 64 KiB: the most encrypted bytes that one read of the socket asks for, a chosen size.
_TLS_READ_BYTES_MAX = 1 << 16
#: 256 KiB: the most bytes that are encrypted in one step and then sent, the size of a piece of a
#: contribution. Longer data take several steps.
_ENCRYPT_BYTES = 1 << 18
#: 15 s without a byte from the gateway's host: the system then sends its first TCP keep-alive
#: probe. The time is chosen.
_KEEPALIVE_IDLE_S = 15
#: 5 s: the time between two TCP keep-alive probes that the system sends to the gateway's host. The
#: time is chosen.
_KEEPALIVE_INTERVAL_S = 5
#: 6 TCP keep-alive probes in a row without an answer end a connection to a gateway, 45 s after the
#: last byte. The number is chosen.
_KEEPALIVE_PROBES_MAX = 6
#: 60,000 ms in which a gateway's host acknowledges nothing that was sent: the system then ends the
#: connection (TCP_USER_TIMEOUT). The time is chosen.
_UNACKNOWLEDGED_MAX_MS = 60_000
#: 10 s: the longest time of one attempt for the TCP connection and TLS with a gateway; then the
#: attempt fails. The time is chosen.
_CONNECT_TIMEOUT_S = 10.0
#: OpenSSL's codes for a certificate that another CA has signed: 7 for its signature, 18 to 21 for
#: an issuer that is not trusted. The error then asks whether ``ca`` is the right one.
_OTHER_CA_CODES = (7, 18, 19, 20, 21)
#: OpenSSL's codes 9 and 10 of a certificate that is not valid yet, or has expired. The text of the
#: error tells the time of this host's clock.
_EXPIRY_CODES = (9, 10)


class TrainerTlsGateway(NamedTuple):
    """A gateway on another host, and the files by which both ends prove who they are."""

    host: str
    port: int
    #: The certificate of the deployment's CA, PEM.
    ca: Path
    #: The name of the one gateway that is accepted; ``None`` accepts any gateway of the CA.
    gateway: str | None = None
    #: The certificate of this trainer and its key, PEM, for a gateway that asks for one.
    identity: tuple[Path, Path] | None = None

    @property
    def address(self) -> str:
        """The address as ``connect`` takes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tls://{host}:{self.port}"


def parse_trainer_tls_address(text: str) -> tuple[str, int]:
    """Returns host and port of ``tls://HOST:PORT``; an IPv6 address stands in brackets.

    Raises:
        ConfigError: The text is something else.
    """
    scheme, _, rest = text.partition("://") if isinstance(text, str) else ("", "", "")
    host, _, digits = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    port = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 5 else 0
    if scheme != "tls" or not host or any(c.isspace() for c in host) or not 0 < port < 1 << 16:
        raise argument_error("address", text, "tls://HOST:PORT")
    return host, port


def load_trainer_tls_context(gateway: TrainerTlsGateway) -> ssl.SSLContext:
    """Returns the settings of TLS for a gateway.

    Raises:
        ConfigError: A file cannot be used.
        LimitReached: This process has no descriptor or no memory left.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate names the gateway, and not the host at which it is found.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([_ALPN])
    # A file may have comments in any encoding around its certificates.
    certificates = read_credential_file(gateway.ca).decode("latin-1").encode("ascii", "replace")
    try:
        context.load_verify_locations(cadata=certificates.decode("ascii"))
    except (OSError, ValueError) as error:
        raise errors.ConfigError(f"{gateway.ca}: no certificate of a CA: {error}") from error
    if gateway.identity is not None:
        _load_tls_identity(context, *gateway.identity)
    return context


def _load_tls_identity(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Loads the certificate of this trainer and its key. Raises ``ConfigError`` for files that
    cannot be used, among them a key that asks for a pass phrase."""

    def refuse_pass_phrase() -> str:
        """Raises ``ConfigError``. OpenSSL calls this for an encrypted key, instead of asking at
        the terminal."""
        text = f"{key}: the key is encrypted; accepted: a PEM key without a pass phrase"
        raise errors.ConfigError(f"{text}, which only this user can read")

    # OpenSSL reads the files itself, and would wait at a pipe.
    for path in (certificate, key):
        read_credential_file(path)
    try:
        context.load_cert_chain(str(certificate), str(key), refuse_pass_phrase)
    except errors.ConfigError:
        raise
    except (OSError, ValueError) as error:
        text = f"{certificate} and {key}: no certificate with its key: {error}"
        raise errors.ConfigError(text) from error


class TrainerTlsChannel:
    """The bytes of one connection, encrypted and decrypted. Any thread may call it."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Prepares TLS over a connected socket to ``host``. Keys are not agreed on yet."""
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        #: Held while OpenSSL works.
        self._working = threading.Lock()
        #: Held while bytes are sent, in the order in which they were encrypted.
        self._sending = threading.Lock()

    def shake_hands(self, gateway: TrainerTlsGateway, deadline: float) -> None:
        """Agrees on keys until ``deadline``, in seconds of ``time.monotonic``, and checks the
        gateway's name.

        Raises:
            UntrustedSocket: The gateway proves no name, or does not speak this protocol.
            OSError: The connection ended, or the time is over.
        """
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._socket.sendall(self._outgoing.read())
                data = self._socket.recv(_TLS_READ_BYTES_MAX)
                if not data:
                    raise ConnectionResetError("closed in the middle of TLS") from None
                self._incoming.write(data)
        self._socket.sendall(self._outgoing.read())
        if self._tls.selected_alpn_protocol() != _ALPN:
            raise errors.UntrustedSocket(
                f"{gateway.address}: whoever answers is no gateway for trainers", is_final=True
            )
        names = _tls_dns_names(self._tls.getpeercert())
        if not any(_is_tls_gateway_name(name, gateway.gateway) for name in names):
            wanted = f"gateway `{gateway.gateway}`" if gateway.gateway else "a gateway"
            raise errors.UntrustedSocket(
                f"{gateway.address}: the certificate is for {', '.join(names) or 'nobody'}, and "
                f"{wanted} is wanted",
                is_final=True,
            )

    def fileno(self) -> int:
        """Returns the descriptor of the socket, to poll it."""
        return self._socket.fileno()

    def settimeout(self, timeout: float | None) -> None:
        """Limits the calls that follow, in seconds; ``None`` for no limit."""
        self._socket.settimeout(timeout)

    def sendall(self, data: bytes | memoryview) -> None:
        """Encrypts and sends bytes. Raises ``OSError`` when the connection is gone."""
        view = memoryview(data)
        with self._sending:
            for at in range(0, len(view), _ENCRYPT_BYTES):
                with self._working:
                    self._tls.write(view[at : at + _ENCRYPT_BYTES])
                    encrypted = self._outgoing.read()
                self._socket.sendall(encrypted)

    def recv(self, _limit: int) -> bytes | None:
        """Reads from the network once, whatever the limit. Returns all that is decrypted, ``None``
        if a record is not complete yet, and no bytes at the end of the connection."""
        data = self._socket.recv(_TLS_READ_BYTES_MAX)
        if not data:
            return b""
        decrypted: list[bytes] = []
        with self._working:
            self._incoming.write(data)
            try:
                while True:
                    part = self._tls.read(_TLS_READ_BYTES_MAX)
                    if not part:
                        return b"".join(decrypted)
                    decrypted.append(part)
            except ssl.SSLWantReadError:
                return b"".join(decrypted) or None
            except ssl.SSLZeroReturnError:
                return b"".join(decrypted)

    def shutdown(self, how: int) -> None:
        """Shuts down the socket, so that both ends see the end of the connection."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def connect_trainer_tls(
    gateway: TrainerTlsGateway, context: ssl.SSLContext, deadline: float
) -> TrainerTlsChannel:
    """Connects to a gateway on another host, and makes sure that it proves its name.

    Args:
        gateway: The gateway.
        context: Its settings of TLS.
        deadline: The latest return, in seconds of ``time.monotonic``.

    Raises:
        UntrustedSocket: Whoever answers proves no gateway's name.
        OSError: Nobody answers in time.
    """
    deadline = min(deadline, time.monotonic() + _CONNECT_TIMEOUT_S)
    left = max(deadline - time.monotonic(), 0.001)
    connected = socket.create_connection((gateway.host, gateway.port), timeout=left)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S),
            (socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S),
            (socket.TCP_KEEPCNT, _KEEPALIVE_PROBES_MAX),
            (socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MAX_MS),
        ):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        channel = TrainerTlsChannel(connected, context, gateway.host)
        try:
            channel.shake_hands(gateway, deadline)
        except ssl.SSLError as error:
            raise trainer_tls_error(gateway, error) from error
    except BaseException:
        connected.close()
        raise
    return channel


def trainer_tls_error(gateway: TrainerTlsGateway, error: ssl.SSLError) -> OSError:
    """Returns a final ``UntrustedSocket`` for an error of TLS that another attempt cannot cure, and
    ``error`` itself where the gateway only ended the connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        if error.verify_code in _OTHER_CA_CODES:
            why += "; is `ca` the CA of this gateway's deployment?"
        elif error.verify_code in _EXPIRY_CODES:
            today = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
            why += (
                f", and it is {today} by this host's clock; renew the gateway's certificate with "
                "`landbridge certs --renew 30`, or correct the clock of either host"
            )
    elif "ALERT" in (error.reason or ""):
        why = f"{error.reason}: the gateway refuses this trainer's certificate, or wants one"
    elif isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return error
    else:
        why = f"{error.reason or error}; is it the `attach` address of a gateway?"
    return errors.UntrustedSocket(f"{gateway.address}: {why}", is_final=True)


def _tls_dns_names(certificate: object) -> list[str]:
    """Returns the DNS names of a certificate as ``getpeercert`` returns it."""
    found = certificate.get("subjectAltName", ()) if isinstance(certificate, dict) else ()
    return [name for kind, name in found if kind == "DNS"]


def _is_tls_gateway_name(name: str, gateway: str | None) -> bool:
    """Returns whether a DNS name is that of a gateway of any fabric, and of ``gateway`` if that is
    given."""
    labels = name.split(".")
    return len(labels) == 3 and labels[2] == "landbridge" and gateway in (None, labels[0])
