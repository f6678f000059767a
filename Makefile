# Everything that a contributor or a CI job runs. `make` alone lists it.
#
# Each target sets up what it needs in a virtual environment of its own, with plain venv and pip.
# Files under .venv/.stamps remember what is installed, so that a second run starts at once.
#
#   make test PYTHON=python3.13          another interpreter, in .venv-python3.13
#   make test PYTEST_ARGS="-k expiry"    arguments for pytest
#   make pytest WHEEL=dist/some.whl      test this wheel instead of building one

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
BENCH_ARGS ?=
TORTURE_ARGS ?=
DEMO_ARGS ?=
# Much of the time of the tests is waiting, for real clocks and servers.
JOBS ?= $(shell getconf _NPROCESSORS_ONLN | awk '{ print 3 * $$1 }')
# Seconds for one test: a browser on a busy machine is slow.
BROWSER_TIMEOUT ?= 600
WHEEL ?=

ENV_DIR := $(VENV)$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
BIN := $(ENV_DIR)/bin
STAMPS := $(ENV_DIR)/.stamps
PIP_INSTALL := $(BIN)/python -m pip install -qq

# Directories are listed too: their time changes when a file in them is removed.
SOURCES := $(shell find src -not -path '*/__pycache__*') pyproject.toml $(wildcard README.md LICENSE)
CODE := $(wildcard src tests tools examples benchmarks)

# The package under test is the installed one. Nothing may put src in front of it.
unexport PYTHONPATH
# Tests start hundreds of Python processes, which would compile the modules of the tests each time.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

say = @printf '\n== %s\n' '$(1)'

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Steps share one environment, and the tests must come last: `make -j` changes nothing.
# The slowest checks take one core each, and run side by side when everything is installed.
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
SLOW_CHECKS := pyright mypy docs

.PHONY: help
help: ## List the targets
	@echo 'Targets:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'Variables: PYTHON=$(PYTHON) (environment: $(ENV_DIR)), PYTEST_ARGS, BENCH_ARGS, TORTURE_ARGS,'
	@echo '           DEMO_ARGS, WALK_ARGS, JOBS=$(JOBS) (pytest workers), WHEEL (test this wheel instead of building one)'

# -- use ------------------------------------------------------------------------------------------

.PHONY: demo
demo: installed ## Show lanes at work on SQLite, live in the terminal, and kill a worker
	@$(BIN)/python examples/demo.py $(DEMO_ARGS)

.PHONY: demo-web
demo-web: $(STAMPS)/web installed ## Run a shop on SQLite with the web page, until Ctrl-C
	@$(BIN)/python examples/shop/live.py $(DEMO_ARGS)

.PHONY: test
test: check pytest ## Run all checks, then the tests against the built wheel
	@echo 'The tests in a browser are a target of their own: make test-browser'

.PHONY: check
check: $(STAMPS)/docs lint imports workflows ## Run all checks: lint, types, imports, workflows, docs
	@$(MAKE) --no-print-directory -j2 $(if $(filter output-sync,$(.FEATURES)),-O) SIDE_BY_SIDE=1 $(SLOW_CHECKS)

.PHONY: pytest
pytest: $(STAMPS)/test installed ## Run the tests only, against the built wheel
	$(call say,pytest)
	@$(BIN)/python -P tools/where.py $(ENV_DIR)
	@$(BIN)/pytest -n $(JOBS) --dist worksteal --ignore tests/browser $(PYTEST_ARGS)

.PHONY: test-browser
test-browser: $(STAMPS)/browser installed ## Run the tests in Chromium and tmux, which must be installed
	$(call say,pytest tests/browser)
	@$(BIN)/python -P tools/where.py $(ENV_DIR)
	@$(BIN)/pytest -n $(JOBS) --dist worksteal --timeout $(BROWSER_TIMEOUT) tests/browser $(PYTEST_ARGS)

.PHONY: torture
torture: $(STAMPS)/test installed ## Run the long parts of the tests and keep their figures
	@$(BIN)/python -P tools/where.py $(ENV_DIR)
	@PYTHONPATH=. $(BIN)/python -P -m tests.torture $(TORTURE_ARGS)

.PHONY: bench
bench: $(STAMPS)/bench installed ## Measure against other queues and write the tables
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

.PHONY: walk
walk: $(STAMPS)/test installed ## Show the way of a call through the code (WALK_ARGS="sqlite put")
	@$(BIN)/python tools/walk.py $(WALK_ARGS)

# -- the checks, one by one -----------------------------------------------------------------------

.PHONY: lint
lint: $(STAMPS)/check ## Check style and formatting (ruff)
	$(call say,ruff check)
	@$(BIN)/ruff check $(CODE)
	$(call say,ruff format --check)
	@$(BIN)/ruff format --check $(CODE)

.PHONY: types
types: mypy pyright ## Check types twice (mypy --strict, pyright)

.PHONY: mypy
mypy: $(STAMPS)/check installed
	$(call say,mypy --strict)
	@$(BIN)/mypy --strict $(CODE)

.PHONY: pyright
pyright: $(STAMPS)/check installed
	$(call say,pyright)
	@$(BIN)/pyright --pythonpath $(BIN)/python $(CODE)

.PHONY: imports
imports: $(STAMPS)/check installed ## Check that imports follow the layers (import-linter)
	$(call say,lint-imports)
	@$(BIN)/lint-imports --no-logo

.PHONY: workflows
workflows: $(STAMPS)/check ## Check the workflow, dependabot and devcontainer files
	$(call say,zizmor)
	@$(BIN)/zizmor --offline --pedantic --no-progress --quiet .github
	$(call say,check-jsonschema)
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec .devcontainer/compose.yaml
	@$(BIN)/python tools/check_devcontainer.py

.PHONY: docs
docs: $(STAMPS)/docs ## Build the docs into site/ and check links, navigation and docstrings
	$(call say,docs)
	@$(BIN)/python tools/check_docs.py

# -- make -----------------------------------------------------------------------------------------

.PHONY: fmt
fmt: $(STAMPS)/check ## Format the code and apply safe fixes
	@$(BIN)/ruff check --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

.PHONY: build
build: $(STAMPS)/build ## Build the sdist, and the wheel from it, into dist/
	$(call say,build)
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist

.PHONY: setup
setup: $(STAMPS)/check $(STAMPS)/docs installed ## Set up the environment for an editor, all tools included
	@echo 'ready: $(BIN)/python'

.PHONY: clean
clean: ## Remove what was built, and the caches
	@rm -rf build dist site .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find $(CODE) -type d -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## The same, and the virtual environments
	@rm -rf $(VENV) $(VENV)-* .bench

# -- the environment ------------------------------------------------------------------------------

$(STAMPS)/venv:
	@# An interpreter that pyenv has installed, but not made active, is found by its name too.
	@if ! $(PYTHON) -c '' 2>/dev/null; then \
		PYENV_VERSION=$$(pyenv whence $(PYTHON) 2>/dev/null | tail -n 1); export PYENV_VERSION; \
	fi; \
	if ! $(PYTHON) -c ''; then \
		echo '$(PYTHON) does not run. Name another: make PYTHON=python3.13' >&2; exit 1; \
	fi; \
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "leasedkeyq needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; \
		echo 'Name another: make PYTHON=python3.13' >&2; exit 1; \
	fi; \
	echo 'setting up $(ENV_DIR)'; \
	$(PYTHON) -m venv --clear $(ENV_DIR)
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/check $(STAMPS)/browser: requirements/test.txt
$(STAMPS)/check: requirements/browser.txt
$(STAMPS)/build $(STAMPS)/test $(STAMPS)/check $(STAMPS)/docs $(STAMPS)/bench $(STAMPS)/browser: $(STAMPS)/%: requirements/%.txt $(STAMPS)/venv
	@echo 'installing $<'
	@$(PIP_INSTALL) -r $<
	@touch $@

# What `leasedkeyq web` and the schedules of the shop need: the extras of the package itself.
$(STAMPS)/web: pyproject.toml $(STAMPS)/wheel
	@echo 'installing the extras cli, web and schedules'
	@$(PIP_INSTALL) "$$(ls $(ENV_DIR)/wheel/*.whl)[cli,web,schedules]"
	@touch $@

$(STAMPS)/wheel: $(SOURCES) $(STAMPS)/build
	@echo 'building and installing the wheel'
	@rm -rf $(ENV_DIR)/wheel
	@$(BIN)/python -m pip wheel -qq --no-deps --no-build-isolation --wheel-dir $(ENV_DIR)/wheel .
	@$(PIP_INSTALL) --force-reinstall --no-deps $(ENV_DIR)/wheel/*.whl
	@$(PIP_INSTALL) $(ENV_DIR)/wheel/*.whl
	@touch $@

.PHONY: installed
ifeq ($(WHEEL),)
installed: $(STAMPS)/wheel
else
installed: $(STAMPS)/venv
	@echo 'installing $(WHEEL)'
	@rm -f $(STAMPS)/wheel
	@$(PIP_INSTALL) --force-reinstall --no-deps $(WHEEL)
	@$(PIP_INSTALL) $(WHEEL)
endif
