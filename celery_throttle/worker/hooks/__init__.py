"""What is attached to Celery: pool, timers, strategies, events and remote control."""
