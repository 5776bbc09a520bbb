"""Clients: what HTTP APIs say about their limits, and how the limits here follow it."""
