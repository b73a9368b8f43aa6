"""Pool files and project files as pydantic models, with their checks and JSON schemas.

`pool_file` holds pools described node by node and reads the file; `ray_pools` and
`kubernetes_pools` hold pools of clusters;
`project_file` holds projects. `to_core()` makes the planner's values. Nothing here reads the store.
"""
