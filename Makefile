# Two commands matter: `make demo` and `make test`. Each does all its own set-up and is quick the
# second time. `make help` lists the rest.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
VENV_STAMP := $(VENV)/.created
DEMO_STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-for-tests
CPU_TORCH := 2.13.0

.DEFAULT_GOAL := help
.PHONY: demo test lint audit soak visitors clean help

demo: $(DEMO_STAMP) ## start the page; flags go in ARGS: make demo ARGS="--port 7861"
	@$(PY) -m assets fetch
	@$(PY) app.py $(ARGS)

test: lint ## ruff, mypy and the whole test suite; ARGS go to pytest
	@$(PY) -m assets fetch
	@$(PY) -m pytest $(ARGS)

lint: $(TEST_STAMP) ## ruff and mypy
	@$(PY) -m ruff check .
	@$(PY) -m mypy

audit: $(TEST_STAMP) ## known vulnerabilities of what is installed, as OSV has them
	@if ! $(PY) -c 'import socket; socket.create_connection(("api.osv.dev", 443), 5)' 2>/dev/null; then \
	  echo "audit: OSV cannot be reached from here; nothing was checked"; \
	else \
	  $(PIP) install --quiet "pip-audit>=2.10,<3" \
	    && $(PY) -m pip_audit --vulnerability-service osv --skip-editable --progress-spinner off; \
	fi

soak: $(TEST_STAMP) ## voice turns for MINUTES (60): does the server's memory stay flat?
	@$(PY) -m benchmarks.soak --minutes $(or $(MINUTES),60)

visitors: $(TEST_STAMP) ## eight visitors for MINUTES (10): does anything cross or wait too long?
	@$(PY) -m benchmarks.visitors --minutes $(or $(MINUTES),10)

clean: ## remove .venv and what tools left; fetched weights stay in the cache
	rm -rf $(VENV) build dist *.egg-info .gradio .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

# Plain torch for Linux brings gigabytes of CUDA, so a machine without an NVIDIA GPU gets the CPU
# build: from wherever this machine's pip is told to look, else from the index that uv knows for
# it. Where neither has one, the plain build below still works. macOS builds are CPU builds.
define INSTALL_TORCH
	@if [ "$$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1 \
	    && ! $(PIP) show --quiet torch >/dev/null 2>&1; then \
	  echo "No NVIDIA GPU: installing the CPU build of torch"; \
	  $(PIP) install "torch==$(CPU_TORCH)+cpu" 2>/dev/null \
	    || { $(PIP) install --quiet uv && $(VENV)/bin/uv pip install --python $(PY) \
	         --torch-backend=cpu "torch==$(CPU_TORCH)"; } \
	    || echo "No CPU build found: the plain build will do, but it is a large download"; \
	fi
endef

$(VENV_STAMP):
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON): install Python 3.11 or newer, or name it: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) --version) is too old: use Python 3.11 or newer, as in make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "error: $(PYTHON) has no venv module: install it (Debian: apt install python3-venv)" >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(DEMO_STAMP): pyproject.toml | $(VENV_STAMP)
	$(INSTALL_TORCH)
	$(PIP) install --editable .
	@touch $@

$(TEST_STAMP): pyproject.toml | $(VENV_STAMP)
	$(INSTALL_TORCH)
	$(PIP) install --editable ".[test]"
	@touch $(DEMO_STAMP) $@
