"""Bytes to values and back, with every limit. Pure."""
