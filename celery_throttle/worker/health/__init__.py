"""Failures: what a worker does without the server, and checks before it starts."""
