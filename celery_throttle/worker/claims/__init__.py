"""The time of waiting tasks has come: a worker claims and dispatches them under leases."""
