"""Nodes that are requested from the autoscaler of a Kubernetes cluster, and nodes that it must keep.

`placeholders` describes pods, `provisioning` describes ProvisioningRequests, `requests` makes the cluster
have exactly those that are wanted. All carry the labels of this control plane and of the pool; no job runs
in them.
"""
