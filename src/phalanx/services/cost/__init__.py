"""Reports of what jobs cost. The ledger itself is `services.ledger`."""
