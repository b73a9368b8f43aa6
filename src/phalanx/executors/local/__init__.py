"""Supervisors as processes of this machine: the embedded default.

`executor` starts, finds and kills them; `standby` keeps one idle supervisor with a warm process.
Nothing about a supervisor is stored but its folder, so a restarted control plane finds them all.
"""

from phalanx.executors.local.executor import POOL, LocalExecutor

__all__ = ["POOL", "LocalExecutor"]
