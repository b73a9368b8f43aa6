"""Parallel strategies: how the ranks of a gang hold a model.

Read `strategies` first (one rank, replicas, shards), then `strategy_choice` (the strategy of a layout,
`auto`), `grid` (tensor parallel layers), `pipeline` and `stages` (pipeline stages), `replica` (DDP),
`materialize` (models made without memory) and `model_costs` (measurements for `phalanx plan`). Layouts as
numbers are in `core.gang.meshes`. Nothing here knows the data, the checkpoint files or the control plane.
"""
