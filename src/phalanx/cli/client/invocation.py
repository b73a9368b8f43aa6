"""The invoking user's environment, directory and interpreter.

This is the only module of the command line that reads the process environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import UserError
from phalanx.kit.text import replace_unencodable

_WORDS = "TOKEN TOKENS SECRET SECRETS PASSWORD PASSWD PASSPHRASE CREDENTIAL CREDENTIALS KEY KEYS APIKEY PAT"
_SECRET_WORDS = frozenset(_WORDS.split())
_SECRET_ENDS = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|APIKEY)$")
_SECRET_VALUE = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@", re.IGNORECASE)
# Set by the shell, an outer job or an outer launcher; wrong for the ranks of a new job.
_LEFT_OUT = re.compile(r"(PHALANX|TORCHELASTIC|PET)_.*|_|SHLVL|OLDPWD|COLUMNS|LINES")


@dataclass(frozen=True, slots=True)
class Invocation:
    """The invoking user's environment, directory and interpreter."""

    env: Mapping[str, str]
    cwd: Path
    python: str

    @classmethod
    def of_this_process(cls) -> Invocation:
        """Read them from this process."""
        env = dict(os.environ)  # noqa: TID251 (the program's entry point)
        return cls(env, _cwd(env), sys.executable)

    def owner(self) -> str:
        """The user's name."""
        return self.env.get("USER") or self.env.get("LOGNAME") or f"uid-{os.getuid()}"


def _cwd(env: Mapping[str, str]) -> Path:
    """The working directory as the user sees it: PWD keeps the symlinks of the path."""
    try:
        real = Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder was deleted", "change to another folder") from None
    seen = Path(env.get("PWD", ""))
    if seen.is_absolute() and seen.is_dir() and os.path.samefile(seen, real):
        return seen
    return real


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable looks like a secret, and is forwarded only when named."""
    words = name.upper().split("_")
    named = any(word in _SECRET_WORDS or _SECRET_ENDS.search(word) for word in words)
    return named or _SECRET_VALUE.match(value) is not None


@dataclass(frozen=True, slots=True)
class ForwardedEnvironment:
    """The part of the user's environment that is sent with a job.

    `withheld` names the variables that look like secrets, `not_utf8` those that cannot be encoded.
    """

    env: dict[str, str]
    withheld: tuple[str, ...]
    not_utf8: tuple[str, ...] = ()


def forward_environment(env: Mapping[str, str], named: Iterable[str]) -> ForwardedEnvironment:
    """Select the variables to forward: all but those that look like secrets, and all `named` ones.

    Raises UserError when a named variable is not set.
    """
    wanted = set(named)
    for name in sorted(wanted):
        if name not in env:
            raise UserError(
                f"--env {name}: the variable is not set here", f"write --env {name}=VALUE"
            )
    kept: dict[str, str] = {}
    withheld: list[str] = []
    not_utf8: list[str] = []
    for name, value in env.items():
        if replace_unencodable(name + value) != name + value:
            not_utf8.append(replace_unencodable(name))
        elif name in wanted:
            kept[name] = value
        elif _LEFT_OUT.fullmatch(name):
            continue
        elif looks_secret(name, value):
            withheld.append(name)
        else:
            kept[name] = value
    return ForwardedEnvironment(kept, tuple(sorted(withheld)), tuple(sorted(not_utf8)))
