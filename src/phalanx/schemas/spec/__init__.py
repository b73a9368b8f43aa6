"""What users write: the job spec as pydantic models, with the way to core values.

`job` holds `JobSpec`; its sections are in `checkpointing`, `training`, `roles` and `python`, made of the
values in `fields`. `document` reads and writes a spec, `support` names what is accepted but not built yet.
`JobSpec.to_contract` and `to_policy` make the core values that the rest of the platform uses.

Nothing here reads a store, a clock or the environment, and nothing after submit reads a spec.
"""
