"""What is stored: parts, metadata documents, shard indexes, keys, byte ranges, layout, tags. No IO."""
