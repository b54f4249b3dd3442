# make demo, make test: both set up everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
WORKERS ?= 2

.PHONY: setup model demo serve test test-full test-clients test-browser soak conformance lint examples clean

setup: $(STAMP)

# Installed again only when the project's requirements change.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

# Fetches the small real model into the user's cache, once.
model: setup
	$(BIN)/python -c "from constrained_spec.backends.catalogue import ensure; ensure('smollm2-135m')"

demo: setup
	$(BIN)/constrained-spec demo

# The API on http://127.0.0.1:8000, with the playground at /.
serve: model
	$(BIN)/constrained-spec serve smollm2-135m

# Most of the time goes into single-threaded work: two processes of one thread are quicker than one of two.
test: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal

test-full: model
	$(BIN)/python -m pytest -q -s -m "not browser"

# 2,000 requests with faults of every kind: no leak, flat memory.
soak: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -s -m "full or not full" tests/engine/test_soak.py

# Every real client: those of the main environment, and those whose pins want an environment of their own.
test-clients: model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/clients
	$(BIN)/python tests/clients/run_isolated.py

# Debian's Chromium; nothing is downloaded by Playwright itself.
test-browser: model
	command -v chromium >/dev/null || (apt-get update -q && apt-get install -y -q --no-install-recommends chromium)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal -m browser tests/browser

# Fetches the official JSON Schema suite, once; fails on any false accept.
conformance: setup
	$(BIN)/constrained-spec conformance

lint: setup
	$(BIN)/ruff check constrained_spec grammars processors tests examples
	$(BIN)/ruff format --check constrained_spec grammars processors tests examples
	$(BIN)/mypy
	$(BIN)/lint-imports

examples: model
	set -e; for f in examples/*.py; do echo "== $$f"; $(BIN)/python $$f; done

clean:
	rm -rf $(VENV) build *.egg-info
