"""One file per noun over the SDK; no logic of its own."""
