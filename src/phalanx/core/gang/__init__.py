"""A gang of ranks: placement, roles, environment, failures, stacks, stalls, networks."""
