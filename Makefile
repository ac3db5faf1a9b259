# The verbs of daily work. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE # tests start many processes: compile once
.PHONY: help setup run demo test bench bench-peers bench-storm bench-scale bench-idle freshness clients chaos check lint types arrows meta format reference replay fuzz clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the program, its tools and the test plugin

$(READY): pyproject.toml $(wildcard tests/plugin/pyproject.toml)
	$(PYTHON) -c 'import sys; sys.exit("nacosdns needs Python 3.11 or newer; say make setup PYTHON=python3.11") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	if [ -f tests/plugin/pyproject.toml ]; then $(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable tests/plugin; fi
	touch $(READY)

run: $(READY) ## run the bridge: make run CONFIG=config/agent.toml
	$(BIN)/nacosdns run -c $(or $(CONFIG),config/agent.toml)

demo: $(READY) ## a real Nacos, the bridge and a service on this machine, asked by dig
	$(BIN)/python deploy/demo.py

test: $(READY) ## the whole suite; the tests against a real Nacos start their own
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS) # long files come first

bench: $(READY) ## server CPU per query, against a C echo and the peers that are installed
	@$(BIN)/python bench/bench.py $(ARGS)

bench-peers: ## get the peers of the bench: Debian packages and CoreDNS (root, Debian)
	bench/get_peers.sh

bench-storm: $(READY) ## whether pushes of big services disturb answers, on a real Nacos
	@$(BIN)/python bench/storm.py $(ARGS)

bench-scale: $(READY) ## 100 to 100,000 services: CPU per query, pauses, start, memory
	@$(BIN)/python bench/scale.py $(ARGS)

bench-idle: $(READY) ## wake-ups, CPU, requests and memory while hardly anybody asks, on a real Nacos
	@$(BIN)/python bench/idle.py $(ARGS)

clients: $(READY) ## what real clients make of answers: the table of docs/clients.md (root)
	@$(BIN)/python tests/real/clients/measure.py

freshness: $(READY) ## from a push to the changed answer, on a real Nacos
	@$(BIN)/python bench/freshness.py $(ARGS)

chaos: $(READY) ## kill, stop, cut, fill and damage everything, under load; the report says what held
	@$(BIN)/python tests/chaos/run.py $(ARGS)

soak: $(READY) ## everything at once for 30 minutes; memory, descriptors, threads and disk must stay flat
	@$(BIN)/python tests/chaos/soak.py $(ARGS)

replay: $(READY) ## only the scenarios on virtual time
	$(BIN)/python -m pytest tests/replay $(ARGS)

fuzz: $(READY) ## wound what comes from outside for a minute: make fuzz ARGS="--seconds 600 --only query"
	@$(BIN)/python tests/fuzz/fuzz.py $(ARGS)

check: lint types arrows meta ## everything that reads the code without running it

lint: $(READY) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy
	$(BIN)/mypy

arrows: $(READY) ## import-linter: which room may use which
	$(BIN)/lint-imports

meta: $(READY) ## the house rules that a machine can see
	$(BIN)/python -m pytest -q tests/meta

format: $(READY) ## write the code as ruff formats it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: $(READY) ## write config/reference.toml from the types of the configuration
	$(BIN)/python tests/meta/reference.py

clean: ## remove what the other verbs made
	rm -rf .venv .bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
