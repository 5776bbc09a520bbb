# Everything here needs Python and make, nothing else; all of it happens in .venv.
# ARGS goes to the command: make test ARGS="-k park", make demo ARGS=--json

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

MINUTES ?= 60
CELERY ?= 5.5 5.6 5.7

.PHONY: demo test test-all test-nightly faults smoke soak bench figures celery-suite docs package plots pictures screenshots keys compose matrix lint types workflows coverage check clean

demo: .venv/.demo
	$(BIN)/celery-throttle demo $(ARGS)

# Each process has servers of its own. Tests wait for more than half of their time, so there are two
# processes more than there are cores.
PYTEST := $(BIN)/python -m pytest --dist worksteal --maxprocesses 4
MORE_THAN_CORES = $$($(PYTHON) -c 'import os; print(min(os.cpu_count() + 2, 4))')

# Shows every law, in some minutes.
test: .venv/.test .venv/monitors/.stamp
	$(PYTEST) --numprocesses $(MORE_THAN_CORES) $(ARGS)

# Every pool and broker, and many more examples of each property.
test-all: .venv/.test .venv/monitors/.stamp
	TESTS=all $(PYTEST) --numprocesses $(MORE_THAN_CORES) $(ARGS)

# For an hour or more: four times as many examples, and tests with tens of thousands of tasks. The examples
# are the same each time; for others: make test-nightly EXAMPLES=random
test-nightly: .venv/.test .venv/monitors/.stamp
	TESTS=nightly $(PYTEST) --numprocesses $(MORE_THAN_CORES) $(ARGS)

# Servers, workers, brokers and clocks fail, for some minutes; prints two tables. Three tests at once,
# as they mostly wait; the test of a cluster compares rates, so it runs alone. At other moments:
# FAULTS_SEED=7 make faults
ALONE := tests/faults/test_cluster_faults.py
faults: .venv/.test
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m faults tests/faults --ignore $(ALONE) $(ARGS)
	$(BIN)/python -m pytest -m faults $(ALONE) $(ARGS)

# A mixed load for as long as asked, on which a worker is killed each minute: make soak MINUTES=600
soak: .venv/.test
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES) $(ARGS)

# Deployed workers of each version of Celery, by pytest-celery: in containers, or as processes where
# there is no Docker engine. Four at once, as they mostly wait. One version: make smoke CELERY=5.5
smoke: .venv/.smoke $(CELERY:%=.venv/celery-%/.stamp)
	SMOKE_CELERY="$(CELERY)" $(BIN)/python -m pytest --numprocesses 4 --dist worksteal tests/smoke $(ARGS)

bench: .venv/.bench
	$(BIN)/python -m benchmarks $(ARGS)

# Figures of the docs, on a quiet machine: of all benchmarks, in an hour, or of some: make figures ARGS=race
figures: .venv/.bench
	-$(BIN)/python -m benchmarks --json docs/figures $(ARGS)
	$(BIN)/python -m benchmarks.pages

# Celery's own integration tests without limits, with one that never binds, and with one that binds.
celery-suite: .venv/.celery-suite
	$(BIN)/python -m tests.celery_suite

# The site, in docs/_build/html; then its links, and the spelling. Links to other sites as well:
# make docs LINKS=all
docs: .venv/.docs
	$(BIN)/sphinx-build --nitpicky --fail-on-warning --keep-going --quiet docs docs/_build/html
	$(BIN)/sphinx-build --fail-on-warning --quiet --builder linkcheck $(if $(LINKS),-D linkcheck_ignore=) docs docs/_build/links
	$(BIN)/codespell README.md CHANGELOG.md docs celery_throttle examples

# The wheel and the source distribution, checked as an index would.
package: .venv/.package
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# The plots in docs/; the tests check that these commands still give the figures they show.
plots: .venv/.demo .venv/.plot
	$(BIN)/celery-throttle simulate edges:100@60s,300s --limit "100/m using fixed-window" --limit "100/m using sliding-log" --limit "100/m using sliding-window" --limit "100/m using sliding-window parts 6 oldest dropped" --limit "100/m burst 100" --plot docs/plots/edges.svg
	$(BIN)/celery-throttle simulate steady:5/s,180s --limit "100/m" --limit "100/m burst 100" --limit "100/m using fixed-window" --limit "100/m using sliding-log" --limit "100/m using sliding-window" --limit "100/m using sliding-window parts 6 oldest dropped" --plot docs/plots/overload.svg
	$(BIN)/celery-throttle simulate random:12/s,30s,seed=1 --limit "10/s" --limit "10/s burst 20" --limit "10/s burst 20 using leaky-queue" --limit "10/s using fixed-window" --plot docs/plots/random.svg
	$(BIN)/celery-throttle simulate fanout:1000 --mode wait --duration 0.2s --limit "100/s" --limit "100/s burst 100" --limit "100/s burst 100 using leaky-queue" --limit "100/s using fixed-window" --limit "100/s using sliding-window" --limit "20 at once" --plot docs/plots/fanout.svg

# The picture of the demo in the README. It shows a real run: take it on a quiet machine.
pictures: .venv/.demo .venv/.plot
	$(BIN)/celery-throttle demo --plot docs/pictures/demo.svg

# The pictures of the web page in docs/, of a quarter of an hour with real workers. Needs Debian's
# chromium and chromium-driver.
screenshots: .venv/.test
	$(BIN)/python -m tests.web.screenshots $(ARGS)

# docs/reference/redis-keys.md, from tests/key_catalogue.py; a test checks that it is up to date.
keys: .venv/.test
	$(BIN)/python -m tests.redis_keys

# Checks docker-compose.yml: two workers, then four, and what they run.
compose:
	@docker compose ls >/dev/null 2>&1 || { echo "make compose needs a Docker engine with Compose" >&2; exit 1; }
	$(PYTHON) -m tests.compose

# Tests on each supported version of Python, Celery, clients and servers that can be had here.
matrix: .venv/.matrix
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/nox $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: .venv/.dev
	$(BIN)/mypy
	$(BIN)/pyright

# The workflows of GitHub.
workflows: .venv/.workflows
	$(BIN)/actionlint

# The short suite, with the share of lines and branches that it runs: coverage.md, and htmlcov/ to read.
# Workers and their processes count as well.
coverage: .venv/.test .venv/.coverage .venv/monitors/.stamp
	$(BIN)/coverage erase
	COVERAGE_PROCESS_START=pyproject.toml $(BIN)/coverage run -m pytest --dist worksteal --maxprocesses 4 --numprocesses $(MORE_THAN_CORES) $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet --fail-under 0
	$(BIN)/coverage report --fail-under 0 --format markdown > coverage.md
	$(BIN)/coverage report --skip-covered

check: lint types docs package test-all smoke faults

clean:
	rm -rf .nox .venv build coverage.md dist docs/_build htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each extra. A half-made .venv (Debian without python3-venv) is made anew.
.venv/.%: pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# An environment for workers of one version of Celery.
.venv/celery-%/.stamp: pyproject.toml
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable . 'celery==$*.*' eventlet gevent
	@touch $@

# What the tests in tests/worker/events run: Flower, and celery-exporter, which needs redis-py 5, so
# it cannot be with Celery 5.7, and lacks some versions of Python. Those tests then go without it.
.venv/monitors/.stamp: Makefile
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'celery[redis]>=5.5,<5.7' 'flower>=2.2,<3' 'prometheus-exporter-celery>=0.11,<0.12; python_version >= "3.11" and python_version < "3.13"'
	@touch $@
