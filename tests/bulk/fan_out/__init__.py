"""Fan-outs."""
