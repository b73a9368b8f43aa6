"""Rows of what attempts ran with: long texts by digest, software and inputs of each node."""
