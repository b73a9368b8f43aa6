"""Certificates of a control plane: given as files, or made by an authority of the home.

The home keeps the authority: its key has mode 0600. Every control plane of the home makes a certificate
of its own for some weeks, holds it in memory, and replaces it in time, without a restart.
"""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import socket
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from phalanx.errors import ServerError
from phalanx.launch.files import distrusted, write_file
from phalanx.launch.tls.trust import read_ca
from phalanx.schemas.home import HomeLayout

CA_FILE = "ca.pem"
KEY_FILE = "ca.key"
_LOCK_FILE = "lock"
_DAY = datetime.timedelta(days=1)
_CA_DAYS = 3650
CERTIFICATE_DAYS = 30
_SKEW = datetime.timedelta(minutes=10)  # clocks of clients may be behind
_US = 1_000_000


@dataclass
class GivenCertificate:
    """A certificate with its key in two files; it is loaded again when they change."""

    cert: Path
    key: Path
    ca: Path | None
    context: ssl.SSLContext = field(default_factory=lambda: _server_context())
    pem: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)
    _loaded: tuple[float, float] = (0.0, 0.0)

    @property
    def authority(self) -> str:
        """The given authority; without one the certificate itself, if it is its own authority."""
        if self.ca is not None:
            return read_ca(self.ca)
        last = self._chain()[-1]
        own = last.issuer == last.subject
        return last.public_bytes(serialization.Encoding.PEM).decode() if own else ""

    def renew(self, now: int) -> None:
        """Load the files if they have changed. Raises ServerError, which quotes no key."""
        try:
            found = (self.cert.stat().st_mtime, self.key.stat().st_mtime)
            if found == self._loaded:
                return
            self._check(now)
            self.context.load_cert_chain(self.cert, self.key, password=_no_password)
            self.pem = (self.key.read_bytes(), self.cert.read_bytes())
        except ssl.SSLError as error:
            raise ServerError(
                f"{self.cert} and {self.key} are not a certificate and its key",
                "both have to be PEM, without a password",
            ) from error
        except OSError as error:
            raise ServerError(f"{error.filename}: cannot be read: {error.strerror}") from error
        self._loaded = found

    def _check(self, now: int) -> None:
        first = self._chain()[0]
        moment = _moment(now)
        if moment > first.not_valid_after_utc:
            said = (
                f"the certificate in {self.cert} expired at {first.not_valid_after_utc:%F %T} UTC"
            )
            raise ServerError(said, "put a new one there")
        if moment < first.not_valid_before_utc:
            said = f"the certificate in {self.cert} is valid from {first.not_valid_before_utc:%F %T} UTC"
            raise ServerError(said, "check the clock of this machine")
        why = distrusted(self.key)
        if why or self.key.stat().st_mode & 0o004:
            raise ServerError(why or f"all users can read {self.key}", "chmod go-rwx it")

    def _chain(self) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates(self.cert.read_bytes())
        except ValueError:
            raise ServerError(f"{self.cert}: is not a certificate in PEM") from None


@dataclass
class GeneratedCertificate:
    """A certificate that the authority of a home signs, for names and addresses of this machine."""

    home: HomeLayout
    names: tuple[str, ...]
    context: ssl.SSLContext = field(default_factory=lambda: _server_context())
    authority: str = ""
    pem: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)
    _until: int = 0  # µs UTC: when the next one is made

    def renew(self, now: int) -> None:
        """Make a certificate at first, and when two thirds of its time are over. Raises ServerError."""
        if now < self._until:
            return
        try:
            ca, ca_key = _authority(self.home.tls_dir, now)
            key, text, until = _signed(ca, ca_key, self.names, now)
            with tempfile.NamedTemporaryFile(dir=self.home.tls_dir, prefix=".server-") as made:
                made.write(key + text)
                made.flush()
                self.context.load_cert_chain(made.name)
        except OSError as error:
            said = error.strerror or type(error).__name__
            raise ServerError(f"{self.home.tls_dir}: no certificate can be made: {said}") from error
        self.pem = (key, text)
        self.authority = ca.public_bytes(serialization.Encoding.PEM).decode()
        self._until = now + (until - now) * 2 // 3


def fingerprint(ca: str) -> str:
    """The SHA-256 of the first certificate in PEM, as other tools show it; empty for none."""
    if not ca:
        return ""
    found = x509.load_pem_x509_certificate(ca.encode()).fingerprint(hashes.SHA256())
    return "sha256:" + found.hex(":").upper()


def own_names(host: str, url_host: str, more: Iterable[str]) -> tuple[str, ...]:
    """The names and addresses by which this machine is reached; `host` is what is listened on."""
    found = {"localhost", "127.0.0.1", "::1", socket.gethostname(), url_host, *more}
    if host not in ("", "0.0.0.0"):
        found.add(host)
    try:
        found |= {str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        pass  # the name of this machine has no address
    return tuple(sorted(name.strip("[]") for name in found if name))


def _authority(folder: Path, now: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority of a home, made by the first that asks. Raises OSError, ServerError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(folder / _LOCK_FILE, "ab") as lock:  # replicas start at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        cert_file, key_file = folder / CA_FILE, folder / KEY_FILE
        if not cert_file.exists():
            _make_authority(cert_file, key_file, now)
        why = distrusted(key_file) or distrusted(cert_file)
        if why:
            raise ServerError(f"the authority of the home cannot be trusted: {why}")
        try:
            ca = x509.load_pem_x509_certificate(cert_file.read_bytes())
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        except ValueError:
            raise ServerError(
                f"{folder}: is not an authority",
                "delete the folder to make another one; clients need its ca.pem then",
            ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
        raise ServerError(f"{key_file} is not the key of {cert_file}", "put a backup back")
    if _moment(now) + CERTIFICATE_DAYS * _DAY > ca.not_valid_after_utc:
        raise ServerError(
            f"the authority {cert_file} ends at {ca.not_valid_after_utc:%F}",
            f"delete {folder} to make another one; clients need its ca.pem then",
        )
    return ca, key


def _make_authority(cert_file: Path, key_file: Path, now: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"Phalanx home on {socket.gethostname()[:40]}")]
    )
    usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
    made = (
        _builder(name, name, key, now, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_file(key_file, _key_text(key))
    write_file(cert_file, made.public_bytes(serialization.Encoding.PEM))


def _signed(
    ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, names: tuple[str, ...], now: int
) -> tuple[bytes, bytes, int]:
    """A new key and its certificate, each in PEM, and the moment at which it ends."""
    key = ec.generate_private_key(ec.SECP256R1())
    common = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Phalanx control plane")])
    usage = dict.fromkeys(_USAGES, False) | {"digital_signature": True}
    identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    made = (
        _builder(common, ca.subject, key, now, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_name, names))), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    text = made.public_bytes(serialization.Encoding.PEM)
    return _key_text(key), text, int(made.not_valid_after_utc.timestamp()) * _US


_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: int, days: int
) -> x509.CertificateBuilder:
    begin = _moment(now)
    public = key.public_key()
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _SKEW)
        .not_valid_after(begin + days * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return x509.DNSName(text)


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _no_password() -> str:
    """Refuse to ask at the terminal for the password of a key."""
    return ""


def _moment(now: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(now // _US, datetime.UTC)
