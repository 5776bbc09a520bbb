"""Failures and the fleet: outages, the workers that live, and checks before a worker starts."""
