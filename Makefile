# Everything a contributor or a CI job runs. `make` alone lists it.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
JOBS ?= 4
DEMO := .venv-demo
OLDEST := .venv-oldest
NEWEST := .venv-newest
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(DEMO)/.ready
OLDEST_READY := $(OLDEST)/.ready
TESTS ?= $(sort $(wildcard tests/*/test_*writer*.py tests/*/writers tests/*/test_outbox*.py tests/*/test_inbox*.py \
	tests/*/test_alembic*.py tests/*/django_project))
EXAMPLES = $(patsubst examples/%/__main__.py,%,$(wildcard examples/*/__main__.py))

# Tests start hundreds of programs. With this variable each of them would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv pictures demo defaults example test check format bench simulate test-proof simulate-membership crash chain proof-upgrades proof-clusters mutants fuzz fault-table published deploy test-servers test-portable test-handoff test-oldest test-newest constraints clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## Make .venv with everything pinned in constraints.txt

define check-python
	@test -n "$(PYTHON)" || { echo "Pillarbox needs Python 3.11 or newer and found none: install one, or name it with make PYTHON=/path/to/python3."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Pillarbox needs Python 3.11 or newer, and $(PYTHON) is older or missing: name another with make PYTHON=/path/to/python3."; exit 1; }
endef

$(READY): pyproject.toml constraints.txt
	$(check-python)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing what constraints.txt pins into $(VENV): all drivers, test servers and tools, about 600 MB; this takes minutes"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r constraints.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Uses .venv if it is there. Otherwise the demo gets a small one of its own, with the same versions: hashes cannot be
# checked for a folder such as this one, so the pins are used without them.
demo: $(if $(wildcard $(READY)),,$(DEMO_READY)) ## See it deliver while relays are killed (ARGS="--orders 500" passes options)
	$(if $(wildcard $(READY)),$(BIN),$(DEMO)/bin)/pillarbox demo $(ARGS)

$(DEMO_READY): pyproject.toml constraints.txt
	$(check-python)
	@test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	@echo "Installing what the demo needs into $(DEMO): Pillarbox, aiohttp, rich, and what those need; about 60 MB"
	@sed -n 's/^\([a-z0-9][^ ]*==[^\\]*\).*/\1/p' constraints.txt > $(DEMO)/pins.txt
	$(DEMO)/bin/python -m pip install --disable-pip-version-check -c $(DEMO)/pins.txt -e '.[http,cli]'
	@touch $@

example: $(READY) ## Run an example until Ctrl-C (NAME=shop_fastapi; docs/examples.md tells of each)
	@test -f "examples/$(NAME)/__main__.py" || { echo "Which one? make example NAME=ONE, where ONE is one of $(sort $(EXAMPLES))."; exit 2; }
	@$(BIN)/python -m examples.$(NAME)

test: $(READY) ## Run the tests, several at a time: most of them wait (JOBS=0 runs them one by one, ARGS passes options)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(READY) ## Check format, lint, types and import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY) ## Format the code and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## Run the benchmarks; fails if a wanted figure is missed (ONLY=write runs those whose name begins so)
	$(BIN)/python -m benchmarks $(ONLY)

simulate: $(READY) ## Run seeds and broken variants on virtual time (SEEDS=2000, SEED=7 replays one)
	$(BIN)/python -m proof.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),2000)) $(ARGS)

test-proof: $(READY) ## Run a part of the proofs in a few minutes: known and new seeds of the simulation, and the crash matrix of SQLite with a sample of the others
	$(BIN)/python -m proof.simulation --seeds $(or $(SEEDS),2000) --new $(or $(NEW),200) --no-variants
	$(BIN)/python -m proof.crash --stores sqlite
	$(BIN)/python -m proof.crash --stores postgres,mariadb --sample $(or $(SEED),$(shell date +%j))

simulate-membership: $(READY) ## Let 1,000 relays join, die and restart on virtual time, and judge their statements (ARGS="--relays 200" passes options)
	$(BIN)/python -m proof.membership $(ARGS)

crash: $(READY) ## Kill processes at named points and count what is lost (ARGS="--points claimed" passes options)
	$(BIN)/python -m proof.crash $(ARGS)

chain: $(READY) ## Kill relays and consumers between three services, and compare what they did (ARGS="--lines http" passes options)
	$(BIN)/python -m proof.chain $(ARGS)

proof-upgrades: $(READY) ## Run writers and relays of two releases while the schema goes up and down (ARGS="--stores sqlite --rounds 2" passes options)
	$(BIN)/python -m proof.upgrades $(ARGS)

proof-clusters: $(READY) ## Kill, freeze and restart the leaders of real clusters under load (ARGS="--clusters nats --faults kill" passes options)
	$(BIN)/python -m proof.clusters $(ARGS)

mutants: $(READY) ## Break the code in small ways, one at a time, and see which tests notice (JOBS=2, ONLY=relay tries one area; DRAW=200 SEED=7 draws breaks at random)
	$(BIN)/python -m proof.mutants --jobs $(if $(filter command line environment,$(origin JOBS)),$(JOBS),2) --page docs/mutants.md $(if $(ONLY),--only '$(ONLY)') $(if $(DRAW),--draw $(DRAW)) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: $(READY) ## Receive random malformed messages and read random rows, 10,000 of each (COUNT=500 draws fewer, ARGS passes options)
	PILLARBOX_FUZZ_COUNT=$(or $(COUNT),10000) $(BIN)/python -m pytest -m fuzz -n $(JOBS) $(ARGS)

fault-table: $(READY) ## Try every fault and partial outage on every broker, and write docs/transports/faults.md
	PILLARBOX_FAULT_TABLE=docs/transports/faults.md $(BIN)/python -m pytest tests/faults/test_faults.py --timeout 600 $(ARGS)

published: $(READY) ## Say which measured tables in the docs are older than the code that they are about
	$(BIN)/python -m proof.published

test-servers: $(READY) ## Run what meets a server on other versions of it, and write docs/support.md (ROWS="mysql redis" runs these)
	JOBS=$(JOBS) $(BIN)/python -m tests.support.server_matrix $(ROWS)

test-portable: $(READY) ## Run the relay's behaviour on PostgreSQL with dialect=portable (ARGS passes options)
	PILLARBOX_TEST_PORTABLE=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/relay/behaviour -k portable $(ARGS)

test-handoff: $(READY) ## Hand off to a real Debezium: downloads it once, 200 MB, and needs Java 17 or newer
	PILLARBOX_TEST_HANDOFF=1 $(BIN)/python -m pytest tests/integration/test_handoff.py $(ARGS)

test-oldest: $(OLDEST_READY) ## Run what meets drivers, SQLAlchemy, Alembic and Django with the oldest supported ones (TESTS=tests runs all)
	$(OLDEST)/bin/python -m pytest $(TESTS) $(ARGS)

$(OLDEST_READY): $(READY)
	@$(BIN)/uv venv --quiet --clear --python 3.11 $(OLDEST)
	@echo "Installing the oldest supported versions into $(OLDEST)"
	@$(BIN)/uv pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct -e '.[all]' --group test
	@touch $@

test-newest: $(READY) ## Run the same with the newest released of everything (PYTHON=python3.14 brings what needs that)
	@test -x $(NEWEST)/bin/python || $(BIN)/uv venv --quiet --python $(PYTHON) $(NEWEST)
	@echo "Installing the newest released versions into $(NEWEST)"
	@$(BIN)/uv pip install --quiet --python $(NEWEST)/bin/python --upgrade --resolution highest -e '.[all]' --group test
	$(NEWEST)/bin/python -m pytest $(TESTS) $(ARGS)

deploy: $(READY) ## Write the Prometheus rules and the Grafana dashboard under deploy/ anew
	$(BIN)/python -c 'from pillarbox.operations.alerts import Thresholds; from pillarbox.operations.export import *; from pathlib import Path; \
		Path("deploy/prometheus-rules.yaml").write_text(to_json(build_rules(Thresholds()))); \
		Path("deploy/grafana-dashboard.json").write_text(to_json(build_dashboard()))'

pictures: $(READY) ## Write the pictures of the dashboard under docs/images/dashboard anew (needs Chromium)
	PILLARBOX_PICTURES=docs/images/dashboard $(BIN)/python -m pytest tests/dashboard/test_browser.py -k fits $(ARGS)

defaults: $(READY) ## Write docs/defaults.md anew, from the table in tests/support/defaults.py
	$(BIN)/python -m tests.support.defaults

constraints: $(READY) ## Resolve constraints.txt anew
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --upgrade --python-version 3.11 \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate \
		--extra all --group test --group check --group build \
		--output-file constraints.txt pyproject.toml

clean: ## Remove the virtualenvs, caches and build results
	rm -rf $(VENV) $(DEMO) $(OLDEST) $(NEWEST) .servers dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples proof -name __pycache__ -prune -exec rm -rf {} +
