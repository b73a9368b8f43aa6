"""The job of a trial: what it is submitted with, and the contract that its ranks get."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phalanx.core.contract.secrecy import JOB_LAYER, WITHHELD, role_layer
from phalanx.core.contract.trial import ForkSource, TrialContract
from phalanx.core.search.draft import US
from phalanx.core.search.model import (
    ForkTrial,
    ResizeTrial,
    RungResources,
    Study,
    SubmitTrial,
    Trial,
)
from phalanx.core.search.rungs.advance import LONGEST_HOLD_S, hold_us
from phalanx.errors import CheckpointNotFound, StoreError
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.services.lifecycle.submit import Limits, PreparedJob, prepare
from phalanx.services.platform import Platform
from phalanx.store.database import Tx
from phalanx.store.studies import checkpoint_pins
from phalanx.store.studies.rows import StoredStudy

CALLER = "caller"
"""Layer of the caller's secret variables."""


def prepare_trial(
    platform: Platform,
    stored: StoredStudy,
    study: Study,
    trial: Trial,
    source: ForkSource | None = None,
    limits: Limits | None = None,
) -> PreparedJob:
    """Check the job of a trial, outside of any transaction; it begins from `source`, if given.

    `limits` as for `lifecycle.submit.check`. Raises SpecInvalid, UserError, NotFound.
    """
    spec, given = platform.studies.spec(stored), stored.header.submission
    secrets = _secrets(platform, stored)
    job = {"name": stored.header.name, **_with_values(given["job"], secrets)}
    filled = spec.model_copy(update={"job": job}).job_for(trial.params)
    shape = study.policy.resources_at(trial.until)
    if shape is not None:
        filled = with_shape(filled, shape)
    caller = given["caller_env"]
    request = SubmitRequest(
        spec=filled,
        code=given["code"],
        kind=given["kind"],
        caller_cwd=given["caller_cwd"],
        caller_env=None if caller is None else {**caller, **secrets.get(CALLER, {})},
        owner=given["owner"],
    )
    made = prepare(platform, request, contract_of(study, trial, source), limits)
    # The text of the difference was stored with the study: it is the same for all trials.
    git = {"source": given.get("source")}
    return replace(made, facts=replace(made.facts, contract={**(made.facts.contract or {}), **git}))


def with_shape(job: Mapping[str, Any], shape: RungResources) -> dict[str, Any]:
    """A job spec with the resources of a rung over its own."""
    named = {"nodes": shape.nodes, "slots_per_node": shape.slots_per_node}
    given = {name: one for name, one in named.items() if one is not None}
    return {**job, "resources": {**(job.get("resources") or {}), **given}}


def contract_of(study: Study, trial: Trial, source: ForkSource | None = None) -> TrialContract:
    """The trial as its ranks see it."""
    policy = study.policy
    hold_s = 0.0
    if policy.rungs is not None and policy.rungs.pauses:
        hold_s = hold_us(study) / US
    elif policy.levels:
        # The study answers at once: a late answer only costs a restart.
        hold_s = LONGEST_HOLD_S
    return TrialContract(
        study=study.num,
        trial=trial.number,
        params=dict(trial.params),
        unit=policy.unit,
        until=trial.until,
        hold_s=hold_s,
        objective=policy.objective.metric,
        fork_of=source,
        # Of the seeds of a final retraining, none is 0, the default of scripts.
        seed=trial.origin.sub + 1 if trial.is_final else None,
    )


def source_of(
    tx: Tx, study: int, trial: Trial, command: SubmitTrial | ForkTrial | ResizeTrial
) -> ForkSource | None:
    """The checkpoint that the job of a command begins from; None: it begins anew.

    A trial that lost its job goes on from the newest one that its jobs have left. Raises
    CheckpointNotFound where that of a fork is gone.
    """
    paths = [command.checkpoint]
    if isinstance(command, ResizeTrial) or (isinstance(command, SubmitTrial) and command.resubmit):
        newest = checkpoint_pins.newest_of(tx, study, trial.number)
        paths = [newest, *paths] if isinstance(command, SubmitTrial) else [*paths, newest]
    for path in paths:
        job = None if path is None else checkpoint_pins.job_of(tx, study, path)
        if job is not None and path is not None:
            return ForkSource(job, path)
    if trial.fork_of is not None:
        raise CheckpointNotFound(f"{trial.fork_of}: the checkpoint that it begins from is gone")
    return None


def _secrets(platform: Platform, stored: StoredStudy) -> dict[str, dict[str, str]]:
    """The values of a study's secret variables by layer. Raises StoreError when their file is gone."""
    path = platform.home.study_secrets_file(stored.header.num)
    try:
        found: dict[str, dict[str, str]] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        # Never quote what was read: it may hold values.
        said = f"the secret variables of the study cannot be read: {type(error).__name__}"
        raise StoreError(said) from error
    return found


def _with_values(
    job: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """A job spec with the values of its secret variables."""

    def filled(env: Any, layer: str) -> Any:
        known = secrets.get(layer, {})
        if not isinstance(env, dict):
            return env
        return {
            name: known.get(name, value) if value == WITHHELD else value
            for name, value in env.items()
        }

    whole = dict(job)
    if "env" in whole:
        whole["env"] = filled(whole["env"], JOB_LAYER)
    if isinstance(whole.get("roles"), dict):
        whole["roles"] = {
            name: {**role, "env": filled(role["env"], role_layer(name))}
            if isinstance(role, dict) and "env" in role
            else role
            for name, role in whole["roles"].items()
        }
    return whole
