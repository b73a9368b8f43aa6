"""Programs started with `python -m`: recipes, planning, network check, batch size, federation."""
