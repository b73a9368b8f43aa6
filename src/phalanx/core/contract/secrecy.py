"""Which variables are secrets: one classifier for the command line and the control plane.

A value that counts as a secret reaches the ranks in a file of mode 0600 and is withheld everywhere else.
Names are judged by their words; a value can show by its shape that it is a secret, whatever its name.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from phalanx.core.contract.job import JobContract

WITHHELD = "(withheld)"
# Layers of a rank's variables that may hold secrets; those of a role have its name.
CALLER_LAYER = "caller"
JOB_LAYER = "job"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_PLAIN_VALUES = frozenset({bool, int, float})
# No shape of a secret is shorter: `a://:b@`.
_SHORTEST = 7
LEAST_MASKED = 8
"""Shorter values are left in output: they are words of ordinary text, too."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[A-Z0-9]+")
# A word of a name that makes it a secret.
_SECRET = _words(
    "APIKEY APITOKEN AUTH AUTHORIZATION BEARER CONNSTR COOKIE COOKIES CRED CREDENTIAL CREDENTIALS "
    "CREDS DSN HMAC JWT KEY KEYS KEYTAB MFA NETRC OAUTH OTP PASS PASSCODE PASSKEY PASSPHRASE "
    "PASSWD PASSWORD PASSWORDS PASSWORT PAT PEM PIN PSK PW PWD SALT SAS SECRET SECRETS TOKEN "
    "TOKENS TOTP WEBHOOK WEBHOOKS "
)
# The same, written together with another word, as in PGPASSWORD or DBPASS.
_GLUED = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD|CREDENTIALS?|CREDS|SECRETKEY"
    r"|(API|ACCESS|ACCOUNT|APP|AUTH|CLIENT|CRYPT|DEPLOY|ENCRYPTION|GPG|HOST|LICENSE|MASTER|PGP|PRIVATE|RSA"
    r"|SERVICE|SHARED|SIGNING|SSH|SSL|STORAGE|TLS)KEY)$|^(PASSWORD|PASSWD|SECRET|APIKEY)"
)
_ENGLISH = _words(
    "ALLPASS BANDPASS BYPASS COMPASS ENCOMPASS HIGHPASS LOWPASS MULTIPASS OVERPASS SURPASS "
    "TRESPASS UNDERPASS SECRETARY SECRETARIAT "
)
# Names of the system that hold no secret, and one that a program needs as it is.
_PLAIN_NAMES = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "KEYMAP"})
# What stands for the secret rather than being it: `DB_PASSWORD_FILE`, `TOKEN_LIMIT`, `RAY_AUTH_MODE`.
_ABOUT = _words(
    "COLUMN COUNT DIR DIRECTORY ENABLED EXPIRY FIELD FILE FILENAME FOLDER HASHER LENGTH LIMIT "
    "METHOD MODE NAME PATH PREFIX REQUIRED ROTATION SIZE SOCK SOCKET TIMEOUT TTL TYPE VERSION "
)
# Words that make a key or a token an ordinary one.
_PLAIN_KEY = _words(
    "BUCKET CACHE DICT FOREIGN GROUP HOT INDEX OBJECT PARTITION PRIMARY PUBLIC PUBLISHABLE "
    "ROUTING SHARD SORT "
)
_PLAIN_TOKEN = _words(
    "BATCH BOS CLS CONTEXT EOS EVAL MASK MAX MIN N NEW NUM PAD PER SEP SEQ STOP TOTAL TRAIN UNK "
    "VOCAB WARMUP "
)
_PLAIN_PASS = _words("BACKWARD FIRST FORWARD MULTI N NUM ONE SECOND SINGLE TWO ")
_ORDINARY = {
    "KEY": _PLAIN_KEY,
    "KEYS": _PLAIN_KEY,
    "TOKEN": _PLAIN_TOKEN,
    "TOKENS": _PLAIN_TOKEN,
    "PASS": _PLAIN_PASS,
    "PIN": frozenset({"MEMORY", "CPU", "CPUS", "CORES", "THREADS"}),
}

# Shapes of tokens that well-known services give out, keys in PEM, and passwords inside of URLs and of
# connection strings. Group `keep` is shown, the rest is not.
_SHAPES = re.compile(
    r"(?P<keep>\b[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^/@\s:'\"]{0,200}:)[^/@\s'\"]{1,500}(?=@)"
    r"|(?<=://)[A-Za-z0-9_-]{20,500}(?=@)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,255}|\bgithub_pat_[A-Za-z0-9_]{20,255}|\bglpat-[A-Za-z0-9_-]{20,100}"
    r"|\bhf_[A-Za-z0-9]{20,100}|\bsk-[A-Za-z0-9_-]{20,300}|\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,200}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,300}|\bAIza[0-9A-Za-z_-]{35}|\bya29\.[0-9A-Za-z_-]{20,500}"
    r"|\bnpm_[A-Za-z0-9]{36}|\bpypi-[A-Za-z0-9_-]{20,500}|\bdop_v1_[a-f0-9]{40,}|\bSG\.[\w-]{16,}\.[\w-]{16,}"
    r"|\bphx_[0-9a-f]{8}_[0-9a-f]{40}"
    r"|\beyJ[A-Za-z0-9_-]{10,4000}\.eyJ[A-Za-z0-9_-]{10,8000}\.[A-Za-z0-9_-]{10,1000}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]{0,20000}"
)
_PAIRS = re.compile(
    r"(?i)(?P<keep>\b(?:password|passwd|pwd|accountkey|sharedaccesskey|access_token|api_key|apikey|sig)=)"
    r"[^\s;&'\"]{4,500}"
)


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable counts as a secret, by its name or by the shape of its value."""
    return _is_secret_name(name) or redacted(value) != value


def _is_secret_name(name: str) -> bool:
    if name.upper() in _PLAIN_NAMES:
        return False
    words = _WORD.findall(_CAMEL.sub("_", name).upper())
    if not words or words[-1] in _ABOUT:
        return False
    if words[-2:] == ["CONNECTION", "STRING"]:
        return True
    return any(_is_secret_word(word, words) for word in words)


def _is_secret_word(word: str, words: list[str]) -> bool:
    if word in _SECRET:
        return not _ORDINARY.get(word, frozenset()).intersection(words)
    return word not in _ENGLISH and _GLUED.search(word) is not None


def redacted(text: str) -> str:
    """A text with every secret that shows by its shape replaced by `WITHHELD`."""
    if len(text) < _SHORTEST:
        return text
    for shape in (_SHAPES, _PAIRS):
        text = shape.sub(_hidden, text)
    return text


def _hidden(found: re.Match[str]) -> str:
    return (found.groupdict().get("keep") or "") + WITHHELD


def shown_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec as it may be stored and shown: secret variables of every `env` are withheld."""
    found = {}
    for key, value in spec.items():
        kind = type(value)
        # A spec has about two hundred values, nearly all of them of these kinds.
        if value is None or kind in _PLAIN_VALUES:
            found[key] = value
        elif kind is str:
            found[key] = value if len(value) < _SHORTEST else redacted(value)
        elif key == "env" and isinstance(value, Mapping):
            found[key] = {
                name: WITHHELD if is_secret(name, str(one)) else one for name, one in value.items()
            }
        else:
            found[key] = _shown(value)
    return found


def _shown(value: Any) -> Any:
    kind = type(value)
    if kind is dict or isinstance(value, Mapping):
        return shown_spec(value)
    if kind is list or isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    return redacted(value) if isinstance(value, str) else value


def withhold(
    contract: JobContract, caller_env: Mapping[str, str] | None
) -> tuple[JobContract, dict[str, str] | None, dict[str, dict[str, str]]]:
    """A contract and the caller's environment without secrets, and the values of those by layer.

    `JobContract.withheld` then names the secrets of each layer.
    """
    values: dict[str, dict[str, str]] = {}

    def split(layer: str, env: Mapping[str, str]) -> dict[str, str]:
        plain, secret = split_secrets(env)
        if secret:
            values[layer] = secret
        return plain

    caller = None if caller_env is None else split(CALLER_LAYER, caller_env)
    roles = tuple(
        replace(role, env=split(role_layer(role.name), role.env)) for role in contract.roles
    )
    env = split(JOB_LAYER, contract.env)
    names = {layer: tuple(sorted(found)) for layer, found in values.items()}
    return replace(contract, env=env, roles=roles, withheld=names), caller, values


def role_layer(name: str) -> str:
    """The layer of the variables of one role."""
    return f"role.{name}"


def layered(
    layers: Sequence[tuple[str, Mapping[str, str]]], withheld: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of a rank, and for each withheld one the layer that has its value.

    A later layer replaces variables of earlier ones, whether it withholds them or not.
    """
    plain: dict[str, str] = {}
    secret: dict[str, str] = {}
    for layer, env in layers:
        for name, value in env.items():
            plain[name] = value
            secret.pop(name, None)
        for name in withheld.get(layer, ()):
            plain.pop(name, None)
            secret[name] = layer
    return plain, secret


def split_secrets(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that may be stored and shown, and those that are secrets."""
    plain = {name: value for name, value in env.items() if not is_secret(name, value)}
    return plain, {name: value for name, value in env.items() if name not in plain}


def _base64_forms(value: bytes) -> set[bytes]:
    """What base64 texts of data that contains the value have in common, in both alphabets.

    Three bytes become four characters: the value begins at one of three places in such a group, and the
    characters at its ends depend on what is beside it.
    """
    if len(value) < LEAST_MASKED:
        return set()
    found = set()
    for before in range(3):
        text = base64.b64encode(bytes(before) + value)
        inner = text[-(-before * 8 // 6) : (before + len(value)) * 8 // 6]
        found |= {inner, inner.translate(_URL_SAFE)}
    return found


class OutputMask:
    """Replaces the values of secret variables in output by asterisks, one for each byte.

    The length stays, so that places in the output stay right. Exact values are found, each line of those
    with several, and the base64 form of a whole value, also inside of a longer text: not one that a program
    has encoded otherwise, quoted or cut.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        whole = {value.encode(errors="surrogateescape") for value in values}
        lines = {line.strip() for value in whole for line in value.splitlines()}
        found = lines.union(*(_base64_forms(value.strip()) for value in whole))
        long = (one for one in found if len(one) >= LEAST_MASKED)
        self._values = sorted(long, key=len, reverse=True)
        self._around = max((len(one) - 1 for one in self._values), default=0)

    def hide(self, data: bytes) -> bytes:
        """The data without the values."""
        for value in self._values:
            if value in data:
                data = data.replace(value, b"*" * len(value))
        return data

    def read(self, file: IO[bytes], begin: int, size: int, *, grows: bool = False) -> bytes:
        """Up to `size` bytes of a file from `begin`, without the values, also those across an end.

        Of a file that `grows`, what may be the beginning of a value is left for a later call. Raises
        OSError.
        """
        start = max(0, begin - self._around)
        file.seek(start)
        data = file.read(begin - start + size + self._around)
        end = begin - start + size
        if grows:
            end = min(end, len(data) - self._unfinished(data))
        return self.hide(data)[begin - start : end]

    def _unfinished(self, data: bytes) -> int:
        """The length of the longest end of `data` with which one of the values begins."""
        longest = 0
        for value in self._values:
            at = data.find(value[:1], max(0, len(data) - len(value) + 1))
            while at >= 0 and not value.startswith(data[at:]):
                at = data.find(value[:1], at + 1)
            longest = max(longest, len(data) - at if at >= 0 else 0)
        return longest
