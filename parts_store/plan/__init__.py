"""Decisions about bytes, keys and order, without any IO: no await, no clock, no randomness."""
