"""Pool files and project files as pydantic models, with their checks and JSON schemas.

`pool_file` holds pools described node by node and reads the file; `ray_pools` holds pools of Ray clusters;
`project_file` holds projects. `to_core()` makes the planner's values. Nothing here reads the store.
"""
