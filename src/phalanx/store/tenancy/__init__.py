"""Rows about identity: accounts, members of groups, and the roles that are granted to them."""
