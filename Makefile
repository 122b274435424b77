# The two commands are `make demo` and `make test`; `make help` lists the rest.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Prints the first Python >= 3.12 that can make a virtual environment. A pyenv shim exists for every version that any
# environment has, so each candidate is run, not just looked for.
define FIND_PYTHON
for python in $(PYTHON) python3.13 python3.12 python3 python \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.*/bin/python3 "$$(uv python find '>=3.12' 2>/dev/null)"; do \
	if [ -n "$$python" ] && "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; \
	then echo "$$python"; break; fi; done
endef

.PHONY: help demo test check integration minio bench docs clean
.DEFAULT_GOAL := help

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1	\2/p' Makefile | while IFS='	' read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

demo: $(VENV)/ready ## write a picture as TIFF chunks into demo-output/, without any server
	@$(BIN)/python -m parts_store.demo demo-output

test: check-code minio ## everything: code checks, unit tests, and integration tests on a real MinIO
	$(BIN)/python -m pytest tests integration

check: check-code ## the fast checks: ruff, mypy, unit tests
	$(BIN)/python -m pytest tests

integration: minio ## the integration tests alone
	$(BIN)/python -m pytest integration

.PHONY: check-code
check-code: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

minio: $(VENV)/ready ## make sure that there is a MinIO to test on: an endpoint, a build with Go, or Docker
	@$(BIN)/python integration/server.py prepare

bench: $(VENV)/ready ## measure speed, side by side with the peers
	$(BIN)/python benchmarks/codecs.py

docs: $(VENV)/ready-docs ## build the documentation into site/
	$(BIN)/zensical build --clean --strict
	@echo "open site/index.html"

clean: ## remove what the other targets made here (not MinIO, which is in the user's cache)
	rm -rf $(VENV) demo-output site .cache dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/ready: pyproject.toml constraints.txt
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		echo "parts_store needs Python 3.12 or newer with venv; found none: install one, or name it with make PYTHON=..." >&2; \
		exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(VENV)
	@$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/ready-docs: $(VENV)/ready
	@$(PIP) --editable '.[docs]'
	@touch $@
