"""The invoking user's environment, directory and interpreter.

This is the only module of the command line that reads the process environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from phalanx.core.contract.secrecy import is_secret
from phalanx.errors import UserError
from phalanx.kit.text import replace_unencodable

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


@dataclass(frozen=True, slots=True)
class ForwardedEnvironment:
    """The part of the user's environment that is sent with a job.

    `secrets` names the variables among them that count as secrets: the control plane keeps their values in
    a file of mode 0600 until the job ends. `withheld` names those that are not sent, `not_utf8` those that
    cannot be encoded.
    """

    env: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    not_utf8: tuple[str, ...] = ()


def protects_secrets(url: str | None) -> bool:
    """Whether secrets may be sent to a control plane: it is on this machine, or the link is encrypted."""
    if url is None:
        return True
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in ("127.0.0.1", "::1", "localhost")


def forward_environment(
    env: Mapping[str, str], named: Iterable[str], *, protected: bool = True
) -> ForwardedEnvironment:
    """Select the variables to forward: all of them, but secrets only over a `protected` link.

    Raises UserError when a named variable is not set, or is a secret that cannot be sent.
    """
    wanted = set(named)
    for name in sorted(wanted):
        if name not in env:
            raise UserError(
                f"--env {name}: the variable is not set here", f"write --env {name}=VALUE"
            )
    kept: dict[str, str] = {}
    secrets: list[str] = []
    withheld: list[str] = []
    not_utf8: list[str] = []
    for name, value in env.items():
        if replace_unencodable(name + value) != name + value:
            not_utf8.append(replace_unencodable(name))
        elif name not in wanted and _LEFT_OUT.fullmatch(name):
            continue
        elif not is_secret(name, value):
            kept[name] = value
        elif protected:
            kept[name] = value
            secrets.append(name)
        elif name in wanted:
            raise UserError(
                f"--env {name}: a secret is not sent over an unencrypted connection",
                f"use an https URL, or `phalanx secrets set {name}` on the control plane's machine",
            )
        else:
            withheld.append(name)
    return ForwardedEnvironment(
        kept, tuple(sorted(secrets)), tuple(sorted(withheld)), tuple(sorted(not_utf8))
    )
