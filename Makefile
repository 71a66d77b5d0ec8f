# Everything a fresh machine needs is Python 3.11, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := run

.PHONY: help run evaluation test test-all check walk simulate bench bench-peers chaos soak fuzz docs format servers clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s  %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.run  ## a dashboard and two workers on SQLite: a retry, a limit, a schedule, a crash, a deployment
	@$(BIN)/python examples/demo/start.py

evaluation: $(VENV)/.test  ## the example in examples/evaluation: executors, a worker, an API, a page
	$(BIN)/python examples/evaluation/run.py

test: check servers  ## everything that must hold: checks, then all tests
	$(BIN)/python -m pytest -n 4 --dist loadgroup
	@$(BIN)/python docs/write_capabilities.py --print

test-all: check servers  ## the same with every pair of brokers and stores, and chaos on each
	UMBEL_TEST_ALL=1 $(BIN)/python -m pytest -n 4 --dist loadgroup

check: $(VENV)/.test  ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

walk chaos soak: export XDG_DATA_HOME := $(CURDIR)/.cache/data

walk: $(VENV)/.test servers  ## the files that one job passes through; ARGS="--list"
	PYTHONPATH=tests/integration $(BIN)/python tests/walk.py $(ARGS)

simulate: $(VENV)/.test  ## ten thousand runs in virtual time, with faults by seed
	$(BIN)/python -m umbel.testing.simulation --seeds 10000

bench: $(VENV)/.run  ## what Umbel reaches on this machine
	$(BIN)/umbel bench

bench-peers: $(VENV)/.test servers  ## Umbel beside its peers; ARGS="--quick" and others
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(VENV)/.test  ## real workers under real faults, every promise checked; BROKER=redis,nats ARGS="--seconds 600"
	PYTHONPATH=tests:tests/scenarios $(BIN)/python -m chaos $(if $(BROKER),--on $(BROKER)) $(ARGS)

soak: $(VENV)/.test  ## steady work, and nothing that grows; ARGS="--hours 8 --report DIR"
	PYTHONPATH=tests:tests/scenarios $(BIN)/python -m chaos.soak $(ARGS)

fuzz: $(VENV)/.fuzz  ## hostile input, led by coverage, into every decoder; ARGS="--seconds 600"
	$(BIN)/python tests/fuzz/run.py $(ARGS)

docs: $(VENV)/.docs  ## the documentation as a site, in site/
	$(BIN)/zensical build

format: $(VENV)/.test  ## put the code into its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

servers: $(VENV)/.test  ## servers for the tests: those that answer, else started here
	@$(BIN)/python tests/start_servers.py

clean:  ## remove what the commands made: environments, caches, example databases
	rm -rf $(VENV) site dist build .cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache \
	  src/*.egg-info benchmarks/.venvs benchmarks/.run examples/media
	rm -f $(foreach name,umbel umbel-demo,$(name).db $(name).db-wal $(name).db-shm)
	find benchmarks docs examples src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[all]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[test,check]'
	@$(PIP) -e '.[amqp]' 2>/dev/null \
	  || echo "not run: AMQP 1.0 and links: Qpid Proton needs a C compiler and OpenSSL's headers"
	@touch $@ $(VENV)/.run

$(VENV)/.fuzz: tests/fuzz/requirements.txt $(VENV)/.test
	$(PIP) -r $<
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[docs]'
	@touch $@
