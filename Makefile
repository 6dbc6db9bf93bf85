# Two commands do all the set-up: `make demo` and `make test`. VENV names the virtual environment they use.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev

.PHONY: demo test lint format bench clean

demo: $(STAMP)
	$(BIN)/relutrim demo

test: lint
	$(BIN)/python -m pytest

lint: $(STAMP_DEV)
	$(BIN)/ruff check src tests benchmarks docs examples
	$(BIN)/ruff format --check src tests benchmarks docs examples
	$(BIN)/mypy

format: $(STAMP_DEV)
	$(BIN)/ruff check --fix src tests benchmarks docs examples
	$(BIN)/ruff format src tests benchmarks docs examples

bench: $(STAMP_DEV)
	$(BIN)/python -m benchmarks.stability
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.compression --section compression
	$(BIN)/python -m benchmarks.isa --section isa
	$(BIN)/python -m benchmarks.public --section public
	$(BIN)/python -m benchmarks.inexact --section inexact
	$(BIN)/python -m benchmarks.vgg --section vgg
	$(BIN)/python -m benchmarks.neighbours --section neighbours

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis demo-output

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(STAMP): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[runtime]"
	touch $@

$(STAMP_DEV): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@
