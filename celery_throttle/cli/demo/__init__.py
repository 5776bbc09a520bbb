"""The demo: one limit at work in two real workers, measured and drawn.

It starts a private server in a temporary directory, and ends everything that it has started.
"""
