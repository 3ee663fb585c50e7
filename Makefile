# The repository's commands. Every target sets up .venv first (a stamp file makes the second call free).
#   make demo         measure this machine, plan a small model for it, train it 20 steps on 4 processes
#   make test         all tests
#   make check        format, lint, types, architecture, then all tests (once, also in `make check test`)
#   make grid         the whole grid of estimates against simulations (tests take the cheapest points)
#   make accuracy     calibrates, then plans and times eight layouts on 4 local ranks (a benchmark, 5 minutes)
#   make wheel-check  the built wheel in a clean environment, used from another folder
#   make clean        what the other targets made
# Paths are relative, so the folder may have any name; tools run as `python -m`, because the scripts in .venv/bin
# carry the absolute path of the folder where they were installed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test check static format grid accuracy wheel-check clean FORCE

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

# The stamp holds the folder it was made in: a moved or copied checkout installs again.
ifneq "$(shell cat $(STAMP) 2>/dev/null)" "$(CURDIR)"
$(STAMP): FORCE
endif

help:
	@sed -n '2,8s/^# *//p' Makefile

$(STAMP): pyproject.toml constraints.txt
	@python=$${PYTHON:-$$(bash .ci/find-python)}; \
	echo "setting up $(VENV) with $$($$python --version)"; \
	"$$python" -m venv $(VENV)
	@$(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@$(PY) -m compileall -q seqplan
	@pwd -P > $@

setup: $(STAMP)

# Measured first, so that the planned step time is this machine's. One thread a rank: the four processes share its cores.
demo: $(STAMP)
	@mkdir -p demo-run
	OMP_NUM_THREADS=1 $(PY) -m seqplan calibrate --nproc 4 --seconds 30 -o demo-run/cluster.yaml
	$(PY) -m seqplan suggest tiny --cluster demo-run/cluster.yaml --gpus 4 --sp 2 --seq-len 512 --global-batch-size 8 -o demo-run/plan.yaml
	OMP_NUM_THREADS=1 $(PY) -m seqplan run demo-run/plan.yaml --steps 20 --output-dir demo-run \
	  --data "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/asyncio"

# Two tests at once: most use one core, and those of several ranks wait for each other much of the time.
test: $(STAMP)
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal

# The architecture test is part of the suite; it runs here first too, because it costs a second and fails early.
static: $(STAMP)
	@$(PY) -m ruff format --check seqplan tests $(wildcard benchmarks)
	@$(PY) -m ruff check seqplan tests $(wildcard benchmarks)
	@$(PY) -m mypy
	@$(PY) -m pytest -q tests/test_architecture.py

check: static test

format: $(STAMP)
	@$(PY) -m ruff format seqplan tests $(wildcard benchmarks)
	@$(PY) -m ruff check --fix seqplan tests $(wildcard benchmarks)

grid: $(STAMP)
	@OMP_NUM_THREADS=1 $(PY) -m tests.grid

accuracy: $(STAMP)
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.accuracy

wheel-check: $(STAMP)
	@bash .ci/wheel-check $(PY)

clean:
	rm -rf $(VENV) build dist demo-run .pytest_cache .mypy_cache .ruff_cache
