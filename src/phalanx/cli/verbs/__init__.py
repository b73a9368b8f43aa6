"""The verbs, one file per noun."""
