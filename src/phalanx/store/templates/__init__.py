"""Job templates of projects and of the whole platform, every version."""
