"""Atomic reads and writes of a chunk, as generators of requests, without IO."""
