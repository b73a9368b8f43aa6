"""Verbs about identity: users, groups, roles, and what the caller is."""
