"""Measurements inside a rank: step timing, profiles, communication, devices, stragglers."""
