"""Rows of hyperparameter search: studies and their trials, as they are listed."""
