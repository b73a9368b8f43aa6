"""One adapter for each framework whose ranks can be launched.

`adapter` defines what a framework decides (`FrameworkAdapter`) and the registry, `builtin` holds the
seven that come with Phalanx, and `rank_environment` puts together the variables of one rank.

Pure values: packages add adapters through the entry point group `phalanx.frameworks`, which
`phalanx.schemas.frameworks` loads. No other room compares a framework's name.
"""
