"""Adapters for the training frameworks that Phalanx can launch.

`adapter` defines the interface `FrameworkAdapter` and the registry, `builtin` the adapters of
Phalanx, and `rank_environment` computes the environment variables of one rank.

Packages add adapters through the entry point group `phalanx.frameworks`, which
`phalanx.schemas.frameworks` loads. No other room compares a framework's name.
"""
