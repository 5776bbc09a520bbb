# Everything here needs Python and make, nothing else; all of it happens in .venv.
# ARGS goes to the command: make test ARGS="-k park", make demo ARGS=--json

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

.PHONY: demo test bench lint types check clean

demo: .venv/.demo
	$(BIN)/celery-throttle demo $(ARGS)

test: .venv/.test
	$(BIN)/python -m pytest $(ARGS)

bench: .venv/.test
	$(BIN)/python -m benchmarks $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each extra. A half-made .venv (Debian without python3-venv) is made anew.
.venv/.%: pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
