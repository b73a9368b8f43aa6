"""Names of the actors and placement groups of an attempt in a Ray cluster."""

from __future__ import annotations

from phalanx.kit.text import job_label

ACTOR_PREFIX = "phalanx-node"
GROUP_PREFIX = "phalanx-gang"


def namespace(owner: str) -> str:
    """The Ray namespace of one home: two control planes never see each other's attempts."""
    return f"phalanx-{owner}"


def group_name(owner: str, job: int, attempt: int) -> str:
    """The placement group of an attempt; it carries the owner, because lists of groups do not."""
    return f"{GROUP_PREFIX}-{owner}-{job_label(job)}-a{attempt:03d}"


def actor_name(job: int, attempt: int, node_rank: int) -> str:
    """The actor that holds the supervisor of one node rank."""
    return f"{ACTOR_PREFIX}-{job_label(job)}-a{attempt:03d}-n{node_rank}"
