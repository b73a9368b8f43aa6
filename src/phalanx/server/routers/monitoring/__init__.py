"""Routes about what watches the platform: alerts of the built-in notifier."""
