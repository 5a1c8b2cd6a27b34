# nsm: `make run` shows it, `make test` tests it; both set up what they need first.

PYTHON ?=
ARGS ?=
# Processes that run tests, up to 4: auto is two more than processors, and for soak one more; 0
# is none but pytest's own.
WORKERS ?= auto
# Percent of lines that `make coverage` must find run; measured on the whole suite.
COVERAGE_FLOOR ?= 79
SOAK_MINUTES ?= 30
SOAK_EXECUTIONS ?= 10000
# One in so many tests of the soak, drawn by the seed, which the tests draw from as well.
SOAK_ONE_IN ?= 1
SOAK_SEED ?=
# Not empty: a test that fails is run twice more, alone, and fails the run if it fails again.
SOAK_AGAIN ?=
BIN := .venv/bin
# A minute's worth: the protocol, sessions, interpreters, real clients and a sibling's attacks.
SMOKE := $(addprefix tests/, nsm/wire nsm/client supervisor/model supervisor/sessions supervisor/manager supervisor/pool \
	supervisor/jail/test_launcher.py isolation/test_forks.py \
	e2e/test_sessions.py e2e/test_mcp_clients.py agent/test_agent_python.py agent/test_agent_bash.py)
CODE := agent benchmarks clients docs/conf.py hatch_build.py supervisor tests tools

# Other people's settings must not change what is imported or measured here.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: coverage release help setup run test smoke test-root test-vm test-gpu soak fuzz conformance box-peers test-integrations check lint types mypy pyright docs bench format pin clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

setup: ## make .venv, and install bubblewrap if it is missing and may be installed
	@PYTHON='$(PYTHON)' sh tools/setup.sh

run: setup ## show the main job on this repository
	@$(BIN)/python tools/demo.py $(ARGS)

test: ## run the tests (ARGS='-k name' for some, ARGS='-n 0 --pdb' in one process)
	@PYTHON='$(PYTHON)' sh tools/setup.sh --tests
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

smoke: ## run a minute's worth of the tests
	@PYTHON='$(PYTHON)' sh tools/setup.sh
	@$(BIN)/python -m pytest -q -n $(WORKERS) $(SMOKE) $(ARGS)

test-root: ## run the tests that need root, as root
	@PYTHON='$(PYTHON)' sh tools/setup.sh --tests
	@$(BIN)/python -m pytest -n $(WORKERS) -m 'root and not vm' $(ARGS)

soak: ## run the tests that take minutes (SOAK_MINUTES=30 SOAK_EXECUTIONS=10000)
	@PYTHON='$(PYTHON)' sh tools/setup.sh --tools
	@SOAK_MINUTES=$(SOAK_MINUTES) SOAK_EXECUTIONS=$(SOAK_EXECUTIONS) NSM_TEST_EXAMPLES=100 \
		SOAK_ONE_IN=$(SOAK_ONE_IN) SOAK_SEED=$(SOAK_SEED) NSM_TEST_FAILED_AGAIN=$(SOAK_AGAIN) \
		$(BIN)/python -m pytest -n $(WORKERS) -m 'slow or hypothesis' $(ARGS)

fuzz: setup ## fuzz what reads others' bytes, guided by coverage (ARGS='--seconds 600 from-agent')
	@$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r tests/fuzz/constraints.txt
	@$(BIN)/python tests/fuzz/guided.py $(ARGS)

test-integrations: setup ## test the adapters with their frameworks (ARGS='smolagents -k name' for some)
	@$(BIN)/python tools/integrations.py $(ARGS)

conformance: setup ## run MCP's own conformance suite and clients (npm); write docs/data/conformance.json
	@$(BIN)/python tests/mcpconformance/run.py $(ARGS)

test-vm: setup ## run the tests that need a machine of their own: Debian, systemd, cgroups (minutes)
	@$(BIN)/python -m pytest -n 0 -o faulthandler_timeout=0 -m vm tests/vm $(ARGS)

test-gpu: setup ## run the tests that need a GPU and a Python with torch (NSM_TEST_TORCH=/path/to/python3)
	@$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r tests/gpu/constraints.txt
	@$(BIN)/python -m pytest -n 0 -s -o faulthandler_timeout=0 -m gpu tests/gpu $(ARGS)

coverage: ## run the tests and report which lines they run, in build/coverage (minutes)
	@PYTHON='$(PYTHON)' sh tools/setup.sh --tests --tools
	@rm -rf .cache/coverage && mkdir -pm 1777 .cache/coverage
	@$(BIN)/python -m coverage run -m pytest -n $(WORKERS) $(ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage html --quiet --directory build/coverage
	@$(BIN)/python -m coverage report --fail-under=$(COVERAGE_FLOOR)

release: ## build the wheel, check it in a clean environment, write its SBOM and provenance, in dist
	@PYTHON='$(PYTHON)' sh tools/setup.sh --tools
	@$(BIN)/python tools/release.py $(ARGS)

box-peers: setup ## run the same attacks and work in the box and in other sandboxes; write docs/data/box-peers.json
	@$(BIN)/python tests/boxpeers/run.py $(ARGS)

check: ## the gate: format, lint, types, docs, tests
	@PYTHON='$(PYTHON)' sh tools/setup.sh --docs --tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target pyright lint mypy docs
	@$(MAKE) --no-print-directory test

lint: setup
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/python tools/house.py

types: setup
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target pyright mypy

mypy:
	$(BIN)/mypy

pyright:
	@sh tools/pyright.sh

docs: ## build the site of the docs in build/docs, and fail on broken links
	@PYTHON='$(PYTHON)' sh tools/setup.sh --docs
	@$(BIN)/python tools/pages.py
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --doctree-dir .cache/doctrees docs build/docs
	@echo 'docs: build/docs/index.html'

bench: ## measure against peers in the same run; write docs/data/benchmarks.json
	@PYTHON='$(PYTHON)' sh tools/setup.sh --bench
	@$(BIN)/python benchmarks/run.py $(ARGS)

format: setup ## format, and fix what can be fixed
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

pin: setup ## rewrite constraints.txt with the newest versions allowed
	$(BIN)/python tools/pin.py

clean: ## remove everything that the targets made
	@python=$(BIN)/python; [ -x $$python ] || python='$(or $(PYTHON),python3)'; \
		$$python -B tools/standin.py clean || echo 'the store of the Nix layer is left' >&2; \
		$$python -B tools/testvm.py --clean || echo 'the cache of the test machine is left' >&2
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
