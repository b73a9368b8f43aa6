"""Services about identity: accounts, groups, granted roles, and what a caller may do."""
