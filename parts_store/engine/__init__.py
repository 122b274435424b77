"""Requests and outcomes, the interface of backends, and the executors that carry out requests on a backend."""
