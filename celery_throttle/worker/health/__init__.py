"""Health: outages, the number of live workers, and checks before a worker starts."""
