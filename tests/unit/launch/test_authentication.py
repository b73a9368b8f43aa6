"""Both ends of a connection prove that they know a secret; others get nothing and keep nobody out."""

import socket
import threading

import pytest

from phalanx.launch import authentication
from phalanx.launch.authentication import (
    AuthenticatedListener,
    MessageSeal,
    NotAuthenticated,
    authenticate,
    derive,
    listen_on,
    read_secret,
)

GUARD_S = 60
SECRETS = {"": b"of the gang", "a": b"of site a"}


@pytest.fixture
def listener():
    with AuthenticatedListener(listen_on("127.0.0.1"), SECRETS.get) as one:
        yield one


def client(listener, secret, name=""):
    """A client on a thread; what it got, or its error."""
    found = []

    def connect():
        line = socket.create_connection(("127.0.0.1", listener.port), GUARD_S)
        try:
            found.append(authenticate(line, secret, name))
        except OSError as error:
            line.close()
            found.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    return thread, found


def test_both_ends_have_a_key_of_their_connection(listener):
    keys = set()
    for name in ("", "a"):
        thread, found = client(listener, SECRETS[name], name)
        peer = listener.accept(GUARD_S)
        thread.join()
        assert (peer.name, peer.address, peer.key) == (name, "127.0.0.1", found[0].key)
        assert peer.line.gettimeout() is None
        keys.add(peer.key)
        peer.line.close()
        found[0].line.close()
    assert len(keys) == 2
    assert b"of the gang" not in repr(peer).encode()


@pytest.mark.parametrize(
    ("secret", "name"), [(b"guess", ""), (b"of the gang", "a"), (b"\0", "unknown")]
)
def test_a_wrong_secret_and_a_claimed_name_are_refused(listener, secret, name):
    thread, found = client(listener, secret, name)
    while thread.is_alive():
        with pytest.raises(TimeoutError):
            listener.accept(0.05)
    assert isinstance(found[0], NotAuthenticated)
    assert listener.num_pending == 0


def test_a_recorded_proof_fits_no_other_connection(listener):
    thread, found = client(listener, SECRETS[""])
    recorded = bytearray()
    read = authentication.AuthenticatedListener._read

    def reading(self, pending):
        result = read(self, pending)
        recorded[:] = pending.data
        return result

    authentication.AuthenticatedListener._read = reading
    try:
        peer = listener.accept(GUARD_S)
    finally:
        authentication.AuthenticatedListener._read = read
    thread.join()
    again = socket.create_connection(("127.0.0.1", listener.port), GUARD_S)
    again.sendall(recorded)
    with pytest.raises(TimeoutError):
        listener.accept(0.2)
    for one in (again, peer.line, found[0].line):
        one.close()


def test_an_impostor_of_the_listener_is_noticed():
    with listen_on("127.0.0.1") as server:
        line = socket.create_connection(server.getsockname(), GUARD_S)
        peer, _ = server.accept()
        peer.sendall(authentication._MAGIC + bytes(32) + bytes(range(32)))
        with pytest.raises(NotAuthenticated, match="does not know the secret"):
            authenticate(line, b"of the gang")
        line.close()
        peer.close()


def test_silent_clients_end_after_a_while_and_the_oldest_give_way(monkeypatch):
    monkeypatch.setattr(authentication, "MOST_PENDING", 4)
    now = [0.0]
    with AuthenticatedListener(listen_on("127.0.0.1"), SECRETS.get, lambda: now[0]) as listener:
        silent = [socket.create_connection(("127.0.0.1", listener.port), GUARD_S) for _ in range(9)]
        with pytest.raises(TimeoutError):
            listener.accept(0)
        assert listener.num_pending == 4
        assert [len(one.recv(99)) for one in silent] == [48] * 9, "each was challenged"
        assert [one.recv(99) for one in silent[:5]] == [b""] * 5
        now[0] += authentication.HANDSHAKE_S
        with pytest.raises(TimeoutError):
            listener.accept(0)
        assert listener.num_pending == 0
        for one in silent:
            one.close()


def test_messages_cannot_be_changed_repeated_or_sent_back():
    key = b"key"
    sender, receiver = MessageSeal(key, "client"), MessageSeal(key, "client")
    first, second = sender.mark(b"one"), sender.mark(b"two")
    assert receiver.accepts(first, b"one")
    assert not MessageSeal(key, "client").accepts(second, b"two"), "out of order"
    assert not MessageSeal(key, "client").accepts(first, b"onf"), "changed"
    assert not MessageSeal(key, "server").accepts(first, b"one"), "sent back"
    assert not receiver.accepts(first, b"one"), "repeated"
    assert not receiver.accepts("ü", b"one")


def test_secrets_are_derived_and_read(tmp_path):
    assert derive(b"x", "gang", "j-1", "1", "0") != derive(b"x", "gang", "j-1", "1", "1")
    path = tmp_path / "secret"
    path.write_text("value\n")
    assert read_secret(path) == b"value"
    path.write_text("")
    with pytest.raises(OSError, match="empty"):
        read_secret(path)


def test_a_listener_is_on_one_interface():
    with listen_on("127.0.0.1") as one:
        assert one.getsockname()[0] == "127.0.0.1"
    with listen_on("203.0.113.7") as one:  # not of this machine: a translated address
        assert one.getsockname()[0] == "0.0.0.0"
