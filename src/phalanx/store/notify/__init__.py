"""Rows of the built-in notifier: samples, alerts, silences, messages and their delivery."""
