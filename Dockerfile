# The tag is a release series: builds get its security fixes, and no breaking release.
FROM python:3.13-slim AS build
WORKDIR /build
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
# Dependencies first: a change of the source does not install them again.
ARG CELERY_VERSION=5.*
COPY pyproject.toml ./
RUN python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' >requirements.txt \
    && pip install --no-cache-dir "celery==$CELERY_VERSION" --requirement requirements.txt
COPY README.md LICENSE ./
COPY celery_throttle celery_throttle
RUN pip install --no-cache-dir --no-deps .

FROM python:3.13-slim
RUN useradd --create-home app
# The installed package is the only copy of it in this image.
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /app
COPY examples examples
USER app
CMD ["celery", "-A", "examples.quotas", "worker", "--loglevel", "INFO"]
