# Everything a contributor does, one word each. Needs Python >= 3.11 with pip, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The tools behind `make lock`, `make sbom`, `make wheel` and `make audit`.
RELEASE := .venv-release
EXTRAS := server,search,train,data,grpc,examples,dev
# Real processes share the machine with the test that watches them. Those of whole jobs mostly wait for one
# another, so three files run side by side; gangs of the training library keep a core busy, so two do.
GANGS := tests/e2e/training
PROCESSES := tests/e2e
PYTEST := $(BIN)/python -m pytest -q
DEFAULT := not extras and not proof
# Tests of the control plane that run on PostgreSQL as well: a few minutes of them, and all.
ON_POSTGRES_SHORT := tests/unit/store tests/unit/services tests/integration/test_control_job_life.py \
  tests/integration/test_control_api.py tests/integration/test_control_sync.py tests/integration/test_control_serve.py
ON_POSTGRES := tests/unit/store tests/unit/services tests/unit/server tests/integration/test_control_*.py \
  tests/e2e/platform/test_recovery.py
# Hundreds of processes import the same modules: without their bytecode each would compile them again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install horovod demo up test test-fast test-extras proof bench compiled bench-scheduler bench-train bench-search bench-autoscaling bench-control bench-kubernetes chaos-control game-days check format ui lock wheel tree sbom audit docs clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Phalanx needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "cannot create $(VENV): on Debian and Ubuntu, install python3-venv" >&2; exit 1; }
	@echo "installing pinned versions into $(VENV); the first time takes a few minutes"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $(STAMP)

demo: $(STAMP) ## train on real data, lose a rank on purpose, recover, print the outcome
	@$(BIN)/python examples/digits/demo.py

up: $(STAMP) ## start the platform in the foreground
	@$(BIN)/phalanx up

test: $(STAMP) ## every test that needs nothing but this checkout
	@failed=0; \
	$(PYTEST) -n 2 --dist worksteal -m "$(DEFAULT)" --ignore=$(PROCESSES) || failed=1; \
	$(PYTEST) -n 3 --dist loadfile -m "$(DEFAULT)" $(PROCESSES) --ignore=$(GANGS) || failed=1; \
	$(PYTEST) -n 2 --dist loadfile -m "$(DEFAULT)" $(GANGS) || failed=1; \
	exit $$failed

test-fast: $(STAMP) ## the unit tests only
	@$(PYTEST) -n 2 --dist worksteal -m unit --ignore=$(PROCESSES)

RAY := $(VENV)/.ray
$(RAY): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]' \
	  && touch $(RAY) || echo "Ray is not installed; its tests skip"

FRAMEWORKS := $(VENV)/.frameworks
$(FRAMEWORKS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[jax,mpi,tensorflow,plots]' \
	  && touch $(FRAMEWORKS) || echo "JAX, mpi4py, TensorFlow and matplotlib are not installed; their tests skip"

UI := web/node_modules/.package-lock.json
$(UI): web/package-lock.json
	@npm ci --prefix web --silent --no-fund --no-audit || echo "Node's packages are not installed; the tests that build the web UI skip"

ui: $(STAMP) $(UI) ## check and build the web UI from web/ into src/phalanx/server/web/dist
	@$(BIN)/python scripts/generate_ui_types.py
	@cd web && npm run --silent check && npm test --silent && npm run --silent build

KUBECTL := $(VENV)/.kubectl
$(KUBECTL): $(STAMP) scripts/kubectl.sh
	@scripts/kubectl.sh $(BIN)/python && touch $(KUBECTL) || echo "helm and kubectl are not installed; their tests skip"

horovod: $(STAMP) ## build Horovod (minutes) or take the wheel that was kept, and install it
	@scripts/horovod.sh install $(BIN)/python

test-extras: $(STAMP) $(RAY) $(FRAMEWORKS) $(KUBECTL) $(UI) ## tests of optional parts (PostgreSQL, Helm, Ray, JAX, MPI, TensorFlow, Horovod, plots) and long ones
	@scripts/horovod.sh install-kept $(BIN)/python
	@$(MAKE) --no-print-directory $(RELEASE)/.installed || echo "the release tools are not installed; their tests skip"
	@failed=0; \
	$(PYTEST) -n 2 --dist loadfile -m "extras and not proof" || test $$? -eq 5 || failed=1; \
	$(PYTEST) -n 2 --dist worksteal -m "$(DEFAULT)" --database postgresql -o cache_dir=.pytest_cache/postgresql \
	  $(ON_POSTGRES_SHORT) || failed=1; \
	exit $$failed

chaos-control: $(STAMP) ## the control plane under kills, upgrades and faults: about an hour; see docs/proof/control.md
	@$(PYTEST) -m proof --timeout=7200 -s tests/e2e/platform/test_replica_kills.py tests/e2e/platform/test_availability.py tests/e2e/platform/test_control_faults.py

game-days: $(STAMP) ## failure modes on real jobs: alerts fire, runbooks run as printed, alerts resolve; some minutes
	@$(PYTEST) -m proof --timeout=1200 tests/e2e/platform/test_game_days.py

proof: $(STAMP) ## kill counts and full matrices: long; the output goes to docs/proof/
	@$(PYTEST) -m proof --timeout=3600 -rA || test $$? -eq 5
	@$(PYTEST) -n 2 --dist worksteal -m "not proof" --database postgresql $(ON_POSTGRES)

bench: $(STAMP) ## launch and recovery times, against torchrun
	@$(BIN)/python bench/launch.py

bench-train: $(STAMP) ## median training step, against raw DDP (ARGS=--quick)
	@$(BIN)/python -W ignore bench/train.py $(ARGS)

bench-scheduler: $(STAMP) ## the planner against its goals; ARGS='--traces FOLDER' or ARGS=--quick
	@$(BIN)/python bench/scheduler/run.py $(ARGS)

bench-autoscaling: $(STAMP) ## a pool that grows against a fixed one; ARGS=--tune, '--seeds 20,21 --load 0.6 --boot 600'
	@$(BIN)/python bench/scheduler/autoscaling.py $(ARGS)

bench-kubernetes: $(STAMP) ## the Kubernetes executor against its goals; ARGS='--only gang,list,outage'
	@$(BIN)/python bench/kubernetes.py $(ARGS)

bench-control: $(STAMP) ## the control plane against its goals; ARGS='--only ingest,lists,live,logs,memory,metrics,phases,scrape,throughput' or --quick
	@$(BIN)/python -m bench.control $(ARGS)

bench-search: $(STAMP) ## rules of hyperparameter search against their goals; ARGS='--only economy --peers PYTHON' or --quick
	@$(BIN)/python -m bench.search $(ARGS)

compiled: $(STAMP) ## a copy of the sources with the planner compiled by mypyc; prints its folder
	@$(BIN)/python scripts/compile_planner.py

check: $(STAMP) ## style, types, the floors of the house, documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(PYTEST) tests/docs tests/house

format: $(STAMP) ## let ruff format everything
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

$(RELEASE)/.installed: requirements/release.txt
	@$(PYTHON) -m venv $(RELEASE) && $(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --require-hashes -r requirements/release.txt && touch $@

lock: $(RELEASE)/.installed ## write requirements/*.txt again: every pin with the digests of its files
	@scripts/lock.sh $(RELEASE)/bin/uv

wheel: $(RELEASE)/.installed ## build dist/*.whl with the locked setuptools
	@$(RELEASE)/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

tree: $(STAMP) ## build dist/supervisor-tree, the supervisor for images without Phalanx, and an archive of it
	@mkdir -p dist && $(BIN)/python -m phalanx.supervise.portable.build dist/supervisor-tree \
	  --tar dist/supervisor-tree-$$(uname -m).tar.gz

sbom: $(RELEASE)/.installed ## write dist/phalanx.cdx.json: a bill of materials (CycloneDX) of requirements/train.txt
	@mkdir -p dist && $(RELEASE)/bin/cyclonedx-py requirements requirements/train.txt --pyproject pyproject.toml \
	  --output-reproducible --output-file dist/phalanx.cdx.json

audit: $(RELEASE)/.installed ## ask the database of advisories about every package of requirements/
	@for file in requirements/*.txt; do \
	  $(RELEASE)/bin/pip-audit --strict --disable-pip --require-hashes --requirement $$file || exit 1; done

docs: $(STAMP) ## write the generated reference pages, dashboards and jobs.proto again
	@$(BIN)/python scripts/generate_grpc.py || echo "jobs.proto is left as it was"
	@$(BIN)/python scripts/generate_dashboards.py || echo "the dashboards are left as they were"
	@$(BIN)/python scripts/generate_docs.py

clean: ## remove caches and build products, not .venv
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
