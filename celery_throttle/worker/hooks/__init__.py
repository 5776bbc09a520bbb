"""What is attached to Celery's worker: its pool, timers, event loop and strategies."""
