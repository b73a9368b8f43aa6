"""The platform fixture for this folder."""

from e2e.platform.harness import platform

__all__ = ["platform"]
