"""Which workers are there, and which queues they consume."""
