# Each target sets up what it needs by itself, in .venv; a fresh clone needs nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test check bench clean

help:
	@echo "make demo   change a robust CIFAR-10 model in two ways, audit both, and write the report"
	@echo "make test   run the tests (unit, property, and end to end on real images)"
	@echo "make check  ruff and mypy"
	@echo "make bench  the speed benchmarks; an hour or more, each ends with one line of JSON"

# Bytecode is made as it is needed: compiling all of torch takes longer than the rest.
$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lipforge needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -e .
	@touch $@

# torchattacks installs folders named robustbench and autoattack over those of RobustBench: it gets a place of its own.
# Bytecode is made as it is needed, but for torchao: tests would take a warning of its compilation for an error.
SITE = $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
$(VENV)/.dev: $(VENV)/.core
	$(PIP) --no-compile -e ".[dev]"
	$(PIP) --no-compile --no-deps --upgrade --target $(VENV)/torchattacks torchattacks
	rm -rf $(VENV)/torchattacks/robustbench $(VENV)/torchattacks/autoattack
	echo "$(abspath $(VENV)/torchattacks)" > "$(SITE)/torchattacks.pth"
	$(BIN)/python -W ignore -m compileall -qq "$(SITE)/torchao"
	@touch $@

demo: $(VENV)/.core
	$(BIN)/lipforge demo

# Two processes of one thread each: on two cores that is faster than one process of two, and steady on a busy machine.
# Each begins with half of the files, so that fixtures are made once; whichever finishes first takes over from the other.
# Bytecode is kept in any case: the tests start many processes, and each would compile torch anew.
test: $(VENV)/.dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations 20

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/forge_overhead.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/processes.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/autoattack.py
	$(BIN)/python benchmarks/passes.py --only cifar10-resnet,cifar10-vit
	$(BIN)/python benchmarks/deploy.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
