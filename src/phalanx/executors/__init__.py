"""The `Executor` protocol and its adapters: what really starts supervisors somewhere."""
