"""Atomic reads and writes of a chunk, as generators of requests. No IO."""
