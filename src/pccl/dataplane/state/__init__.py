"""The shared state: digests, manifests, pulling and serving."""
