"""Use against quotas, and the alerts that it causes. The planner enforces quotas in `core.scheduling`."""
