"""What a control plane process keeps in memory: decoded job rows, nodes, and the planner's indexes.

Read `scheduler_cache` first, then `planner_input` (stored rows as the planner's values) and `index_sync`
(the planner's index follows its input). A cache holds nothing that the store does not: a new process
builds the same. The room is below `platform`: its functions take transactions and never a `Platform`.
"""
