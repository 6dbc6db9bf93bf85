# Two commands do all the set-up: `make demo` and `make test`. VENV names the virtual environment they use.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev

.PHONY: demo test lint format bench attack docs picture wheel clean

demo: $(STAMP)
	$(BIN)/relutrim demo

# On all cores, one thread each: the tests are many and small.
test: lint
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

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
	$(BIN)/python -m benchmarks.promise --section promise
	$(BIN)/python -m benchmarks.float32
	$(BIN)/python -m benchmarks.isa --section isa
	$(BIN)/python -m benchmarks.public --section public
	$(BIN)/python -m benchmarks.inexact --section inexact
	$(BIN)/python -m benchmarks.vgg --section vgg
	$(BIN)/python -m benchmarks.cnn --section cnn
	$(BIN)/python -m benchmarks.kill --section kill
	$(BIN)/python -m benchmarks.certificates --section certificates
	$(BIN)/python -m benchmarks.neighbours --section neighbours
	$(BIN)/python -m benchmarks.loading --section loading

# Valid certificates and models with one thing changed: nothing false may be accepted.
COUNT ?= 10000
SEED ?= 0
attack: $(STAMP_DEV)
	$(BIN)/python -m benchmarks.attack --count $(COUNT) --seed $(SEED)

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build

# The picture of a report in README and docs, taken with headless Chromium.
picture: $(STAMP_DEV)
	$(BIN)/python docs/take_picture.py docs/report.png

# The wheel, installed with all it needs into an environment of its own and put to work there.
wheel: $(STAMP_DEV)
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(PYTHON) -m venv --clear dist/venv
	dist/venv/bin/python -m pip install --quiet -c constraints.txt "$$(ls dist/relutrim-*.whl)[runtime]"
	cd dist && venv/bin/relutrim demo --output demo
	rm -rf dist/venv dist/demo

clean:
	rm -rf dist docs/_build $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis demo-output

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(STAMP): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[runtime,fast]"
	touch $@

$(STAMP_DEV): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@
