"""What a worker does beside its tasks: heartbeats, checks, reports, and what an outage needs."""
