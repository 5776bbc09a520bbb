"""Plans that read the status of limits, of waiting tasks, of workers, and of fan-outs."""
