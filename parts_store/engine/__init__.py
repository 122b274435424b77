"""Requests and outcomes, the protocol of backends, and the executors that carry requests to a backend."""
