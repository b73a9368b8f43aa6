"""Groups of settings that read no files and no environment. `server.settings` puts all groups together."""
