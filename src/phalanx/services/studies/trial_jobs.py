"""The job of a trial: what it is submitted with, and the contract that its ranks get."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phalanx.core.contract.secrecy import JOB_LAYER, WITHHELD, role_layer
from phalanx.core.contract.trial import TrialContract
from phalanx.core.search.model import Study, Trial
from phalanx.errors import StoreError
from phalanx.schemas.api.jobs import SubmitRequest
from phalanx.services.lifecycle.submit import PreparedJob, prepare
from phalanx.services.platform import Platform
from phalanx.services.studies.submit import CALLER
from phalanx.store.studies.rows import StoredStudy

_HOLD_S = 2.0
"""How long a trial keeps its slots at a rung before the cost of a resume was measured."""


def prepare_trial(
    platform: Platform, stored: StoredStudy, study: Study, trial: Trial
) -> PreparedJob:
    """Check the job of a trial, outside of any transaction. Raises SpecInvalid, UserError, NotFound."""
    spec, given = platform.studies.spec(stored), stored.header.submission
    secrets = _secrets(platform, stored)
    job = {"name": stored.header.name, **_with_values(given["job"], secrets)}
    filled = spec.model_copy(update={"job": job}).job_for(trial.params)
    caller = given["caller_env"]
    request = SubmitRequest(
        spec=filled,
        code=given["code"],
        kind=given["kind"],
        caller_cwd=given["caller_cwd"],
        caller_env=None if caller is None else {**caller, **secrets.get(CALLER, {})},
        owner=given["owner"],
    )
    return prepare(platform, request, contract_of(study, trial))


def contract_of(study: Study, trial: Trial) -> TrialContract:
    """The trial as its ranks see it."""
    policy = study.policy
    rungs = policy.rungs
    hold_s = 0.0
    if rungs is not None and rungs.pauses:
        hold_s = rungs.hold_s if rungs.hold_s is not None else study.facts.resume_cost_s or _HOLD_S
    return TrialContract(
        study=study.num,
        trial=trial.number,
        params=dict(trial.params),
        unit="epoch" if rungs is None else rungs.unit,
        until=trial.until,
        hold_s=hold_s,
        objective=policy.objective.metric,
    )


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
