"""Connections between processes that share a secret: both sides prove that they know it.

The listener sends a fresh challenge, the client answers with one of its own and a proof, and the listener
proves itself in return. The secret is never sent, and a recorded proof fits no other connection. Clients
that are silent, slow or wrong cost the listener a descriptor for a few seconds and never block others.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MAGIC = b"phalanx-auth-1\n\0"
_NONCE = 32
_PROOF = 32
_LONGEST_NAME = 255
# Connections that are taken before answers are read again.
_AT_ONCE = 256
# A client that finds the queue full tries again only after a second: strangers must not fill it.
_BACKLOG = 1024
# In place of the listener's proof: the client's was wrong.
_REFUSED = b"refused".ljust(_PROOF, b"\0")
# The limit of a handshake: processes of a gang complete one within milliseconds.
HANDSHAKE_S = 10.0
MOST_PENDING = 128
"""Connections that have not proven themselves, of all clients. A new one ends the oldest of the
address that has most, so that silent clients cannot keep others out."""


class NotAuthenticated(ConnectionError):
    """The other side does not know the secret."""


@dataclass(frozen=True, slots=True)
class AuthenticatedPeer:
    """A connection, both ends of which know the secret. `key` is of this connection alone."""

    line: socket.socket
    key: bytes = field(repr=False)
    name: str
    address: str


def read_secret(path: str | Path) -> bytes:
    """The secret in a file. Raises OSError, also where the file is empty."""
    found = Path(path).read_bytes().strip()
    if not found:
        raise OSError(22, "the file with the gang's secret is empty", str(path))
    return found


def derive(secret: bytes, *words: str) -> str:
    """Another secret in hexadecimal, for the purpose that `words` name."""
    return hmac.new(secret, "/".join(words).encode(), hashlib.sha256).hexdigest()


def _proof(secret: bytes, side: str, server: bytes, client: bytes, name: bytes) -> bytes:
    text = b"\0".join([side.encode(), server, client, name])
    return hmac.new(secret, text, hashlib.sha256).digest()


def authenticate(
    line: socket.socket, secret: bytes, name: str = "", within_s: float = HANDSHAKE_S
) -> AuthenticatedPeer:
    """Prove to a listener that this side knows the secret. Raises NotAuthenticated, OSError.

    The timeout of `line` stays as it is.
    """
    before = line.gettimeout()
    line.settimeout(within_s)
    label, client = name.encode(), secrets.token_bytes(_NONCE)
    if len(label) > _LONGEST_NAME:
        raise ValueError(f"a name has at most {_LONGEST_NAME} bytes, this one {len(label)}")
    head = _exactly(line, len(_MAGIC) + _NONCE)
    if not head.startswith(_MAGIC):
        raise NotAuthenticated("the listener is not one of this gang")
    server = head[len(_MAGIC) :]
    own = _proof(secret, "client", server, client, label)
    line.sendall(bytes([len(label)]) + label + client + own)
    said = _exactly(line, _PROOF)
    if said == _REFUSED:
        raise NotAuthenticated("the listener refused the secret of this side")
    if not hmac.compare_digest(said, _proof(secret, "server", server, client, label)):
        raise NotAuthenticated("the listener does not know the secret")
    line.settimeout(before)
    key = _proof(secret, "key", server, client, label)
    return AuthenticatedPeer(line, key, name, str(line.getpeername()[0]))


def _exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        got = line.recv(count - len(data))
        if not got:
            raise ConnectionError("the other side closed the connection")
        data += got
    return data


@dataclass(slots=True)
class _Pending:
    """A connection that has not proven itself."""

    line: socket.socket
    address: str
    until: float
    challenge: bytes
    data: bytearray = field(default_factory=bytearray)

    def num_missing(self) -> int:
        """Bytes that are missing in the client's answer."""
        total = 1 + (self.data[0] if self.data else 0) + _NONCE + _PROOF
        return total - len(self.data)


class AuthenticatedListener:
    """Accepts connections of clients that know a secret. Used by one thread.

    `secret_of` gives the secret of a client by its name; None: there is no such client.
    """

    def __init__(
        self,
        server: socket.socket,
        secret_of: Callable[[str], bytes | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`server` listens; the listener owns it."""
        self._server, self._secret_of, self._clock = server, secret_of, clock
        self._server.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)
        self._pending: dict[int, _Pending] = {}

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.getsockname()[1])

    def fileno(self) -> int:
        """A descriptor that is readable when `accept` has something to do (Linux: an epoll)."""
        poll: Any = self._selector
        return int(poll.fileno())

    @property
    def num_pending(self) -> int:
        """Connections that have not proven themselves."""
        return len(self._pending)

    def accept(self, timeout_s: float) -> AuthenticatedPeer:
        """The next client that proves itself. Raises TimeoutError."""
        until = self._clock() + timeout_s
        while True:
            now = self._clock()
            self._expire(now)
            ends = [one.until for one in self._pending.values()]
            left_s = min([until, *ends]) - now
            for key, _ in self._selector.select(max(0.0, left_s)):
                if key.fileobj is self._server:
                    self._welcome()
                elif (pending := self._pending.get(key.fd)) is not None:
                    found = self._read(pending)
                    if found is not None:
                        return found
            if self._clock() >= until:
                raise TimeoutError("no client has proven itself in time")

    def _welcome(self) -> None:
        """Take the waiting connections and challenge them."""
        for _ in range(_AT_ONCE):
            try:
                line, where = self._server.accept()
            except OSError:
                return
            if len(self._pending) >= MOST_PENDING:
                self._drop(self._oldest())
            line.setblocking(False)
            challenge = secrets.token_bytes(_NONCE)
            until = self._clock() + HANDSHAKE_S
            try:
                line.sendall(_MAGIC + challenge)
            except OSError:
                line.close()
                continue
            self._pending[line.fileno()] = _Pending(line, str(where[0]), until, challenge)
            self._selector.register(line, selectors.EVENT_READ)

    def _oldest(self) -> _Pending:
        """The oldest connection of the address that has most of them."""
        most = Counter(one.address for one in self._pending.values()).most_common(1)[0][0]
        return next(one for one in self._pending.values() if one.address == most)

    def _read(self, pending: _Pending) -> AuthenticatedPeer | None:
        """Read a client's answer, and verify it when it is complete."""
        try:
            got = pending.line.recv(pending.num_missing())
        except BlockingIOError:
            return None
        except OSError:
            got = b""
        pending.data += got
        if not got or pending.num_missing() > 0:
            if not got:
                self._drop(pending)
            return None
        return self._verify(pending)

    def _verify(self, pending: _Pending) -> AuthenticatedPeer | None:
        data = bytes(pending.data)
        label, client, said = (
            data[1 : 1 + data[0]],
            data[-_NONCE - _PROOF : -_PROOF],
            data[-_PROOF:],
        )
        name = label.decode("utf-8", "replace")
        secret = self._secret_of(name)
        # An unknown name costs the same work as a known one.
        own = _proof(secret or b"\0", "client", pending.challenge, client, label)
        if not hmac.compare_digest(said, own) or secret is None:
            with contextlib.suppress(OSError):
                pending.line.sendall(_REFUSED)
            self._drop(pending)
            return None
        self._forget(pending)
        line = pending.line
        line.setblocking(True)
        try:
            line.sendall(_proof(secret, "server", pending.challenge, client, label))
        except OSError:
            line.close()
            return None
        key = _proof(secret, "key", pending.challenge, client, label)
        return AuthenticatedPeer(line, key, name, pending.address)

    def _expire(self, now: float) -> None:
        for one in [one for one in self._pending.values() if one.until <= now]:
            self._drop(one)

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.line)
        del self._pending[pending.line.fileno()]

    def _drop(self, pending: _Pending) -> None:
        self._forget(pending)
        pending.line.close()

    def close(self) -> None:
        """Stop listening; connections that were accepted stay."""
        for one in list(self._pending.values()):
            self._drop(one)
        self._selector.close()
        self._server.close()

    def __enter__(self) -> AuthenticatedListener:
        """Return itself."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Close."""
        self.close()


class MessageSeal:
    """Marks the messages of one direction of a connection, so that none can be changed or repeated."""

    def __init__(self, key: bytes, direction: str) -> None:
        """`direction` is `client` or `server`, the sender."""
        self._key, self._direction, self._count = key, direction.encode(), 0

    def mark(self, body: bytes) -> str:
        """The mark of the next message."""
        text = b"%s/%d/" % (self._direction, self._count) + body
        self._count += 1
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def accepts(self, mark: str, body: bytes) -> bool:
        """Whether the next message is this one."""
        return hmac.compare_digest(mark.encode(), self.mark(body).encode())


def listen_on(address: str, port: int = 0) -> socket.socket:
    """Listen on the interface that has this address. Raises OSError.

    A port that the supervisor holds for its ranks can be shared, by processes of the same user alone.
    An address that is not one of this machine, such as that of a translated network, means every one.
    """
    family = socket.AF_INET
    with contextlib.suppress(OSError):
        family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    for where in (address, ""):
        server = socket.socket(family, socket.SOCK_STREAM)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind((where, port))
            server.listen(_BACKLOG)
        except OSError as error:
            server.close()
            if where and error.errno in (99, None):  # EADDRNOTAVAIL
                continue
            raise
        return server
    raise OSError(99, f"{address} cannot be bound")
