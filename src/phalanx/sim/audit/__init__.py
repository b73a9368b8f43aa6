"""Checks of a simulation: promises, evictions, calibration of estimates."""
