"""A Kubernetes cluster for tests: an API server on loopback, and nodes that run pods as local processes.

`objects` is the store with versions, finalizers and deletion; `custom` checks custom resources; `api`
serves it over HTTP, with faults that tests switch on; `kubelet` registers nodes, binds pinned pods and
runs them. The kubelet speaks HTTP only, so that it also works beside a real API server.
"""
