# Where everything starts. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help

# The pinned set is for CPython 3.11 on x86-64 Linux; tools/setup_env.py says so on any other.
PYTHON ?= $(firstword $(shell command -v python3.11 python3) python3)
BIN := .venv/bin
# Each test run starts hundreds of interpreters: compiling everything anew doubles its time.
unexport PYTHONDONTWRITEBYTECODE
BENCH := .bench
CLIENTS := .clients
DEMO_ARGS ?=
BENCH_ARGS ?=
VERIFY_ARGS ?=
PYTEST_ARGS ?=

.PHONY: help
help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 12

.PHONY: env
env: ## Make .venv from requirements/ (returns at once when it is there)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || \
	  { printf 'error: %s is no Python 3.11\n\nhint: install Python 3.11 and run: make env PYTHON=/path/to/python3.11\n' '$(PYTHON)' >&2; exit 3; }
	@$(PYTHON) tools/setup_env.py

.PHONY: demo
demo: env ## Run the whole thing once: two engines, one endpoint, one proof. DEMO_ARGS="--json FILE"
	@$(BIN)/baton demo $(DEMO_ARGS)

.PHONY: console
console: ## Build the gateway's console into the package (npm ci, esbuild)
	@$(PYTHON) tools/build_console.py

.PHONY: test-programs
test-programs: env ## Get what some tests use and pip has not: Chromium, npm, promtool (apt-get, as root)
	@$(BIN)/python tools/test_programs.py
	@$(BIN)/python tools/build_console.py --if-possible

.PHONY: test
test: test-programs $(CLIENTS)/.complete ## Run every test: unit first, then contract, integration and end to end
	@$(BIN)/python -m pytest tests/unit -n 3 --dist worksteal $(PYTEST_ARGS)
	@$(BIN)/python tools/test_lanes.py $(PYTEST_ARGS)
	@# A run of its own: by now the shared pair of engines has ended, and its memory is free.
	@$(BIN)/python -m pytest tests/e2e --durations=25 $(PYTEST_ARGS)
	@echo 'tests/image was left out: it builds a 3 GB container image as root (make test-image)'

.PHONY: unit
unit: env ## Run the unit tests (under a minute)
	@$(BIN)/python -m pytest tests/unit -n 3 --dist worksteal $(PYTEST_ARGS)

.PHONY: lint
lint: env ## Run ruff, the formatter's check, mypy and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: check
check: lint test ## lint, then test

.PHONY: image-cpu
image-cpu: ## Build the CPU image with buildah, on a base made from Debian's packages (root; 10 GiB of disk)
	@$(PYTHON) tools/image_cpu.py build

.PHONY: test-image
test-image: env ## Build the CPU image, run `baton image check` and one real handoff inside it, remove it (root)
	@BATON_TEST_IMAGE=1 $(BIN)/python -m pytest tests/image $(PYTEST_ARGS)

.PHONY: verify-local
verify-local: env ## Prove real handoffs on this machine: UCX, LIBFABRIC, two namespaces, two Ray nodes (10 min, root). VERIFY_ARGS="--only ucx"
	@PYTHONPATH=src $(BIN)/python tools/verify_local.py $(VERIFY_ARGS)

.PHONY: bench-gateway
bench-gateway: env $(BENCH)/.complete ## Measure the gateway against vllm-router and calls by hand (5 min). BENCH_ARGS="--rounds 2"
	@PYTHONPATH=src $(BIN)/python bench/gateway.py --router $(BENCH)/bin/vllm-router \
	  --json bench/results/gateway.json $(BENCH_ARGS) >/dev/null
	@$(BENCH)/bin/python bench/gateway_plot.py bench/results/gateway.json

.PHONY: bench-engines
bench-engines: env $(BENCH)/.complete ## Real engines behind Baton, Ray's own P/D and vllm-router (20 min). BENCH_ARGS="--rounds 1"
	@PYTHONPATH=src $(BIN)/python bench/engines.py --router $(BENCH)/bin/vllm-router \
	  --json bench/results/engines.json $(BENCH_ARGS) >/dev/null || failed=$$?; \
	  if [ $${failed:-0} -le 1 ]; then $(BENCH)/bin/python bench/engines_plot.py bench/results/engines.json; fi; \
	  exit $${failed:-0}

# Apart from .venv: vllm-router and matplotlib bring what the pinned set does not have.
$(BENCH)/.complete: requirements/bench.txt
	@rm -rf $(BENCH)
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip install --quiet --no-deps --require-hashes -r $<
	@touch $@

# Apart from .venv: client libraries bring what the pinned set does not have. Node's where it is.
$(CLIENTS)/.complete: requirements/clients.txt requirements/clients-node/package-lock.json
	@rm -rf $(CLIENTS)
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --no-deps --no-compile --require-hashes -r $<
	@if command -v npm >/dev/null; then cp -r requirements/clients-node $(CLIENTS)/node && \
	  npm ci --prefix $(CLIENTS)/node --ignore-scripts --no-audit --no-fund --silent; fi
	@touch $@

.PHONY: clients
clients: $(CLIENTS)/.complete ## Make .clients: the client libraries that the integration tests ask with

.PHONY: pin
pin: env ## Write the hashes into requirements/ after a version was edited there
	@$(BIN)/python tools/pin.py requirements/cpu.txt requirements/gpu.txt requirements/dev.txt requirements/bench.txt requirements/clients.txt src/baton/demo/model-packages.txt

.PHONY: clean
clean: ## Remove caches and build leftovers (not .venv, not the models in ~/.cache/baton)
	@rm -rf console/node_modules console/.built src/baton/observe/console/static
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	@find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: clean-env
clean-env: clean ## Remove .venv, .bench and .clients, too
	@rm -rf .venv .venv.lock .programs $(BENCH) $(CLIENTS)
