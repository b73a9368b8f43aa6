"""Job files of tools that are no objects of Kubernetes: batch scripts and tasks."""
