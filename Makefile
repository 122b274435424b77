# The two commands are `make demo` and `make test`; `make help` lists the rest.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# The nightly workflow names other versions: `make unit CONSTRAINTS=minimum.txt`.
CONSTRAINTS := constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)

# Prints the first Python >= 3.12 that can make a virtual environment, or the one named by PYTHON if it can. A pyenv
# shim exists for every version that any environment has, so each candidate is run, not just looked for.
define FIND_PYTHON
try() { "$$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo "$$1"; }; \
if [ -n "$(PYTHON)" ]; then try "$(PYTHON)"; exit 0; fi; \
for python in python3.13 python3.12 python3 python python3.14 python3.15 \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.*/bin/python3 "$$(uv python find '>=3.12' 2>/dev/null)"; do \
	if [ -n "$$python" ] && try "$$python"; then break; fi; done
endef

# The environment is trusted where it was made, for the PYTHON and CONSTRAINTS it was made for, and while its Python runs.
STATE := $(CURDIR):$(PYTHON):$(CONSTRAINTS)
ifneq ($(shell $(BIN)/python -c '' 2>/dev/null && cat $(VENV)/ready 2>/dev/null),$(STATE))
.PHONY: $(VENV)/ready
endif

# The nightly workflow sets PARTS_STORE_ALL_EXAMPLES, and runs all cases of all tests.
MOST := $(if $(PARTS_STORE_ALL_EXAMPLES),,-m 'not nightly')

# Tests start hundreds of processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check check-code unit test-virtual coverage integration model conformance zarr-tests soak minio bench bench-quick bench-docs bench-details bench-archive docs clean
.DEFAULT_GOAL := help

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1	\2/p' Makefile | while IFS='	' read -r name what; do \
		printf '  make %-13s %s\n' "$$name" "$$what"; done

demo: $(VENV)/ready ## show what the library does, in under a minute and without a server: demo-output/index.html
	@$(BIN)/parts-store demo demo-output

test: check-code minio ## code checks, unit tests, and integration tests on a real MinIO: about 15 minutes on two cores
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(MOST) tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(MOST) integration

check: check-code ## ruff, mypy, and the unit tests with samples of the exhaustive tests: about a minute on two cores
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m 'not slow' tests

unit: $(VENV)/ready ## the unit tests alone, the slow ones included
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(MOST) tests

test-virtual: $(VENV)/ready ## the unit tests of existing files alone: parsers, references, adoption
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(MOST) tests/virtual

coverage: $(VENV)/ready ## the unit tests of `make check`, and the lines and branches that they do not reach
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m 'not slow' --cov --cov-report=term tests

integration: minio ## the integration tests alone
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal $(MOST) integration

model: $(VENV)/ready ## the model of the write protocol, all of it: some minutes
	$(BIN)/python -m tests.model --deep

conformance: $(VENV)/ready ## check the three readers of the conformance kit, and print what they read
	$(BIN)/python -m conformance --short --batch $(BIN)/python -W ignore -m conformance.readers.ours
	$(BIN)/python -m conformance --short --batch $(BIN)/python -m conformance.readers.minimal
	@if $(BIN)/python -m conformance.readers.node --check; then set -x; \
		$(BIN)/python -m conformance --short --batch $(BIN)/python -m conformance.readers.node; fi

zarr-tests: $(VENV)/ready ## zarr's own tests on our store, in 18 runs: some of them with ONLY='ours session'
	$(BIN)/python -m integration.zarr_suite $(if $(ONLY),--only '$(ONLY)')

MINUTES := 10
soak: minio ## random scenarios with new seeds for MINUTES=10; again with ONLY=name SEED=number TIMES=20
	$(BIN)/python -m integration.soak --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED)) $(if $(TIMES),--times $(TIMES))

check-code: $(VENV)/ready
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

minio: $(VENV)/ready ## make sure that there is a MinIO to test on: an endpoint, a build with Go, or Docker
	@$(BIN)/python integration/server.py prepare
	@$(BIN)/python -m integration.toxics prepare
	@$(BIN)/python -m integration.azurite prepare

bench: minio ## measure speed against all peers, in about half an hour; results are in bench-output/; some rows with ONLY=Icechunk
	$(BIN)/python -m benchmarks.speed --output bench-output $(if $(ONLY),--only '$(ONLY)')

bench-quick: minio ## the most important rows of `make bench`, in about three minutes
	$(BIN)/python -m benchmarks.speed --quick --repetitions 3

bench-docs: $(VENV)/ready ## write the results of the last `make bench` into docs/speed.md and docs/images/speed.svg
	$(BIN)/python -m benchmarks.speed --from bench-output --publish

bench-details: minio ## measure codecs, transactions, sessions, adoption and reading, as ratios to what they are built on
	$(BIN)/python -m benchmarks.codecs
	$(BIN)/python -m benchmarks.transactions
	$(BIN)/python -m benchmarks.durability
	$(BIN)/python -m benchmarks.sessions
	$(BIN)/python -m benchmarks.adoption
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.reading

bench-archive: minio ## adopt archives of up to 100 million chunks, against VirtualiZarr, in less than ten minutes
	$(BIN)/python -m benchmarks.archive

docs: $(VENV)/ready-docs ## build the documentation into site/
	$(BIN)/zensical build --clean --strict
	@echo "open site/index.html"

clean: ## remove what the other targets made here (not MinIO, which is in the user's cache)
	rm -rf $(VENV) demo-output bench-output site .cache .coverage dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/ready: pyproject.toml $(CONSTRAINTS)
	@if [ -e $(VENV) ] && [ ! -e $(VENV)/made-by-make ]; then \
		echo "$(VENV) was not made by this Makefile, which would replace it: move it away" >&2; exit 1; fi
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		if [ -n "$(PYTHON)" ]; then echo "PYTHON=$(PYTHON) is no Python 3.12 or newer with venv" >&2; \
		else echo "parts_store needs Python 3.12 or newer with venv, and there is none: install one, or name it with make PYTHON=..." >&2; fi; \
		exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(VENV) && touch $(VENV)/made-by-make
	@$(PIP) --editable '.[test]'
	@printf '%s' "$(STATE)" > $@

$(VENV)/ready-docs: $(VENV)/ready
	@$(PIP) --editable '.[docs]'
	@touch $@
