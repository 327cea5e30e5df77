"""A device plugin for Kubernetes: the resource `mpsd.io/share` is a part of a GPU, which mpsd enforces by a lease.

| module | holds |
|---|---|
| api | the messages and services of the kubelet |
| shares | which part of which GPU some devices of the resource are; no I/O |
| leases | the leases of those parts, at mpsd |
| plugin | the service that the kubelet calls, and its registration |
"""
