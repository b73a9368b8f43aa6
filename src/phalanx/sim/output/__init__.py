"""Figures and pictures of a finished simulation."""
