"""Reports of what jobs cost, and budgets. The ledger itself is `services.ledger`."""
