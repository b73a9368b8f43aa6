"""The platform fixture of the local pool for this folder; tests of Ray pools bring their own."""

from e2e.platform.harness import platform

__all__ = ["platform"]
