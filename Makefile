# Needs make and Python 3.11 or newer with venv, nothing else. Everything is installed into .venv.
#
#   make demo   [ARGS=--once]    four simulated engines, the processor, a real Envoy, and a tour of requests
#   make test   [ARGS='-k name'] formatting, lint, types, tests
#   make lint                    formatting, lint, types
#   make format                  mend formatting and what lint can mend
#   make test-engines            the chat tests against real engines; installs gigabytes, takes minutes
#   make test-sdks               official SDKs of several majors, Python and JavaScript; installs 0.5 GB the first time
#   make bench                   CPU per request and token, beside SMG; about ten minutes; --rows, --runs in ARGS
#   make bench-tokens            CPU per request by kind of prompt, beside SMG; about twenty minutes
#   make bench-routing           time to first token of real traffic, beside SMG; TRACE=FILE; about fifteen minutes
#   make bench-index             the prefix index: time, memory, the loop's longest turn; a minute or two
#   make bench-routing-sim       the same traffic and policies in simulation, fleets of up to 512 workers; ten minutes
#   make bench-dialects          what each dialect costs beside Chat Completions; half a minute
#   make bench-transport         benchmarks/bench_transport.py; so with every other benchmark there
#   make clean                   remove .venv and what tools left behind
#
# PYTHON=/path/to/python3 names the interpreter to use.

.PHONY: demo test lint format test-engines test-sdks bench bench-tokens bench-routing bench-routing-sim clean help
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
CANDIDATES := python3.13 python3.12 python3.11 python3
PYTHON ?= $(shell for name in $(CANDIDATES); do \
	if "$$name" -c '$(NEW_ENOUGH)' 2>/dev/null; then command -v "$$name"; break; fi; done)

help:
	@sed -n 's/^#   //p' Makefile

# Started through the tether, so that the demo also ends when make is killed.
demo: $(BIN)/made-for-use
	@exec $(BIN)/python -I -S extproc/cli/tether.py exec $$PPID --signal TERM $(BIN)/extproc demo $(ARGS)

lint: $(BIN)/made-for-tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 4 -m 'not engines and not sdks' $(ARGS)

test-engines: $(BIN)/made-for-tests
	$(BIN)/python tests/engines_real/install.py
	$(BIN)/pytest -m engines tests/engines_real $(ARGS)

test-sdks: $(BIN)/made-for-tests
	$(BIN)/pytest -m sdks tests/e2e $(ARGS)

# SMG has an environment of its own, as it brings its own versions of grpcio and protobuf.
SMG_VERSION := 1.13.0
SMG := .venvs/smg-$(SMG_VERSION)

bench: $(BIN)/made-for-tests $(SMG)/made
	@exec $(BIN)/python -I -S extproc/cli/tether.py exec $$PPID --signal TERM \
		$(BIN)/python -m benchmarks.gateway --smg $(SMG)/bin/smg $(ARGS)

bench-tokens: $(BIN)/made-for-tests $(SMG)/made
	@exec $(BIN)/python -I -S extproc/cli/tether.py exec $$PPID --signal TERM \
		$(BIN)/python -m benchmarks.gateway.tokens --smg $(SMG)/bin/smg $(ARGS)

TRACE ?= ../shared/traces
bench-routing: $(BIN)/made-for-tests $(SMG)/made
	@exec $(BIN)/python -I -S extproc/cli/tether.py exec $$PPID --signal TERM \
		$(BIN)/python -m benchmarks.routing --smg $(SMG)/bin/smg --trace $(TRACE) $(ARGS)

# Simulated on one process's own clock: no servers, and no SMG.
bench-routing-sim: $(BIN)/made-for-tests
	@exec $(BIN)/python -m benchmarks.routing_sim --trace $(TRACE) $(ARGS)

$(SMG)/made: | $(BIN)/made-for-use
	@echo "installing SMG $(SMG_VERSION)"
	@$(BIN)/python -m venv --clear $(SMG)
	@$(SMG)/bin/pip install --quiet --disable-pip-version-check smg==$(SMG_VERSION)
	@touch $@

bench-index: $(BIN)/made-for-tests $(SMG)/made
	@exec $(BIN)/python -I -S extproc/cli/tether.py exec $$PPID --signal TERM \
		$(BIN)/python -m benchmarks.bench_index --smg $(SMG)/bin/smg $(ARGS)

bench-%: $(BIN)/made-for-tests
	$(BIN)/python benchmarks/bench_$(subst -,_,$*).py $(ARGS)

format: $(BIN)/made-for-tests
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment that we made is made anew when the dependencies change; one that was there before is only used.
$(BIN)/made-for-use: pyproject.toml
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null; then \
		echo "Python 3.11 or newer is needed, tried: $(if $(PYTHON),$(PYTHON),$(CANDIDATES))." >&2; \
		echo "Install it with:  apt-get install python3 python3-venv   (Debian, Ubuntu)" >&2; \
		echo "                  dnf install python3.12                 (Fedora, RHEL)" >&2; \
		echo "                  brew install python@3.13               (macOS)" >&2; \
		echo "or name one:      make PYTHON=/path/to/python3.12 …" >&2; \
		exit 1; fi
	@if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
		version=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "$(PYTHON) lacks the module venv or ensurepip." >&2; \
		echo "Install it with:  apt-get install python$$version-venv" >&2; \
		exit 1; fi
	@if [ -e $@ ] || ! $(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null; then \
		echo "making $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv --clear $(VENV); fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@echo "installing what pyproject.toml asks for"
	@$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(BIN)/made-for-tests: $(BIN)/made-for-use
	@echo "installing what the tests need"
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@
