"""Job files of tools that are no objects of Kubernetes: batch scripts, tasks and configurations."""
