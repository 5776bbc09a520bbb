"""Fan-outs and removals."""
