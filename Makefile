# The two commands: `make demo` shows the whole loop, `make test` checks everything that CI checks.
# Needed: make and Python >= 3.11. Everything else is installed into .venv, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check --no-input
# Folders with code; one that has none yet is left out.
CODE := $(foreach folder,elasticgrid tests examples benchmarks,$(if $(wildcard $(folder)/*.py $(folder)/*/*.py),$(folder)))
# Examples are scripts that import their neighbours.
EXAMPLES := $(sort $(patsubst %/,%,$(dir $(wildcard examples/*/*.py))))
empty :=
TESTS := $(sort $(patsubst %/,%,$(dir $(wildcard tests/*/*.py))))
MYPY := $(BIN)/mypy --strict --explicit-package-bases --no-error-summary
SCRIPT_PATH := $(subst $(empty) $(empty),:,$(strip $(CURDIR) $(EXAMPLES)))

.DEFAULT_GOAL := help
.PHONY: help demo setup test lint types schemas-check fast clean

help: ## show this
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

demo: $(VENV)/.cli-installed ## run the whole loop on this machine, then verify its own replay
	@$(BIN)/elasticgrid demo

setup: $(VENV)/.dev-installed ## install everything that development needs

# First what may share the machine, then what trains under a load of real time and would see its neighbour as load. A
# machine that is busy with other things can make a real process late: what failed is run once more, by itself, and has
# to pass then. Both runs are printed.
SHARED := --ignore tests/e2e --ignore tests/survive
AGAIN := --last-failed --last-failed-no-failures none
test: setup lint types schemas-check ## set up, then run all that CI runs
	$(BIN)/pytest -n 2 --dist loadfile $(SHARED) || $(BIN)/pytest $(AGAIN) $(SHARED)
	$(BIN)/pytest tests/e2e tests/survive || $(BIN)/pytest $(AGAIN) tests/e2e tests/survive

fast: setup ## run the tests that start no server and no process
	$(BIN)/pytest -m 'not server and not process and not demo and not browser and not ssh'

lint: setup ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Each example and each folder of tests has modules of its own, of which several have the same name, so each is checked
# by itself.
types: setup ## check types
	MYPYPATH=$(SCRIPT_PATH) $(MYPY) $(filter-out tests examples,$(CODE))
	@for folder in $(EXAMPLES); do \
	  echo "mypy $$folder" >&2; \
	  MYPYPATH=$(CURDIR):$$folder $(MYPY) $$folder || exit 1; \
	done
	MYPYPATH=$(SCRIPT_PATH) $(MYPY) tests/*.py
	@for folder in $(TESTS); do \
	  echo "mypy $$folder" >&2; \
	  MYPYPATH=$(SCRIPT_PATH):$$folder $(MYPY) $$folder || exit 1; \
	done

schemas-check: setup ## check that the documents in schemas/ are what the code says
	$(BIN)/elasticgrid schemas check

clean: ## remove the environment, caches and local data
	rm -rf $(VENV) .elasticgrid .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are younger than what they were made from, so a warm run installs nothing and needs no network.
$(VENV)/.dev-installed: $(VENV)/.cli-installed
	@echo "installing the development tools ..." >&2
	@$(PIP) install --editable '.[dev]'
	@touch $@

$(VENV)/.cli-installed: pyproject.toml | $(BIN)/python
	@echo "installing elasticgrid into $(VENV) ..." >&2
	@$(PIP) install --editable '.[cli]'
	@touch $@

$(BIN)/python:
	@for python in "$(PYTHON)" python3.13 python3.12 python3.11; do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "making $(VENV) with $$("$$python" --version) ..." >&2; \
	    exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo "No Python >= 3.11 with its venv module was found: tried $(PYTHON), python3.13, python3.12, python3.11." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
	exit 1
