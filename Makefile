# servescope: two commands for a fresh clone are `make run` and `make test`. PYTHON must be 3.11 or newer.
PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3 2>/dev/null))
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: run test lint env clean gpu-proof

run: env  ## the main job: install, get the model, run the quickstart on the native core
	$(BIN)/servescope model get smollm2-135m
	$(BIN)/servescope run

test: env lint  ## everything this machine can run; ends with what was skipped and how to enable it
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

env: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "servescope needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

gpu-proof: env  ## on one GPU, <= 10 minutes: drive the engines added by `servescope engines add`, keep the evidence
	$(BIN)/servescope model get smollm2-135m
	$(BIN)/servescope run plans/gpu.toml --out gpu-proof
	@echo "send back the directory gpu-proof/"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
