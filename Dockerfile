FROM python:3.13-slim
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY celery_throttle celery_throttle
RUN pip install --no-cache-dir .
COPY examples examples
RUN useradd --create-home app
USER app
CMD ["celery", "-A", "examples.quotas", "worker", "--loglevel", "INFO"]
