"""What a worker reports of limits: in its log, to ``celery inspect``, and to the records."""
