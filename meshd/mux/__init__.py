"""Streams over links that come and go. Pure."""
