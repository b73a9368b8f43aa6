"""Objects of Kubernetes that are jobs: one module for each kind, and `pods` for the templates in them."""
