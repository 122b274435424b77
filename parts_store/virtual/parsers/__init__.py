"""Parsers: where the chunks of existing files are."""
