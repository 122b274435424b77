"""Readers that pass the kit."""
