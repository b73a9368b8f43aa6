"""Pool files and project files."""
