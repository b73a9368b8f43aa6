"""Pools, nodes, projects and tokens: apply their files, show and remove them, drain nodes.

`pools` refuses changes that would cut off a running job, `projects` keeps limits in a tree,
`inventory` shows what is free and which jobs use it, `credentials` has tokens and sessions. The planner
reads the stored rows through `services.caches`.
"""
