"""Commands that change limits, waiting tasks and fan-outs."""
