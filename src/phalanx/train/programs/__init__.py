"""Programs started with `python -m`: data index, recipes, planning, network check."""
