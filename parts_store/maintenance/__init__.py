"""Verify and repair stored arrays."""
