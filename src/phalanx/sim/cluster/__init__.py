"""The discrete-event cluster: engine, job lives, costs, packing, samples over time."""
