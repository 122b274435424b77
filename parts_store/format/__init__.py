"""The stored format: parts, metadata documents, shard indexes, keys, byte ranges, layouts, tags. No IO."""
