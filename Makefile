# Every target installs just what it needs into .venv and runs from a fresh clone. `make` alone lists them.

# The uv on your PATH, else one of our own in .uv. `make UV=/path/to/uv …` names another.
UV ?= $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)
OWN_UV := $(filter .uv/bin/uv,$(UV))
RUN = $(UV) run --no-default-groups

# Compiled modules are kept: tests start many processes, and each would compile everything that it imports again.
unexport PYTHONDONTWRITEBYTECODE

# One test process more than there are cores, as each waits for servers a good part of its time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Each process takes one part of the files, so that what a file shares is set up once, and helps when it is done.
SPREAD = -n $(WORKERS) --dist worksteal
ARGS ?=
WITH ?=
# What the examples need, with a package of your choice, and the database of `make example`.
EXAMPLE = --group examples --extra server --extra postgres --extra dynamodb --extra d1 --extra a2a --extra mcp \
	--extra telegram --extra whatsapp \
	$(if $(WITH),--with "$(WITH)")
DB ?= sqlite:///$(NAME).db
# Which sections `make bench` measures; all when it is empty.
BACKENDS ?=

.DEFAULT_GOAL := help
.PHONY: help demo example test test-all waits chaos suites clients uis lint types fix hooks bench histories soak package docs clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(OWN_UV) ## Talk to a durable agent in your browser; a small model runs on this machine
	$(RUN) --extra demo --group weights perdure demo $(ARGS)

example: $(OWN_UV) ## Run an example over a database of its own: make example NAME=wingman
	@test -f "examples/$(NAME)/app.py" || { \
		echo "which example? make example NAME=$$(cd examples && ls */app.py | sed 's|/.*||' | paste -sd '|' -)"; exit 2; }
	$(RUN) $(EXAMPLE) perdure migrate --db "$(DB)"
	PERDURE_DB="$(DB)" $(RUN) $(EXAMPLE) uvicorn --factory examples.$(NAME).app:create_app $(ARGS)

test: $(OWN_UV) ## Run the tests, in random order, but for the slow ones
	$(RUN) --group test --all-extras pytest $(SPREAD) -m "not slow" $(ARGS)

test-all: $(OWN_UV) ## Run every test and, without ARGS, the suites of LangGraph, LangChain and deepagents
	$(RUN) --group test --all-extras pytest $(SPREAD) $(ARGS)
	$(if $(strip $(ARGS)),,$(MAKE) suites)

waits: $(OWN_UV) ## A thousand threads that wait for days, 50,000 that sleep, and 2,000 races, at full size
	@export PERDURE_WAITS=full; \
	$(RUN) --group test --all-extras pytest --timeout 3000 -m "" -s tests/runtime/test_many_waits.py \
		tests/runtime/nodes/test_waiting.py tests/runtime/nodes/test_wait_processes.py $(ARGS)

chaos: $(OWN_UV) ## Every test at full size: all kill points, mutants, races; over an hour
	@export PERDURE_CHAOS=full PERDURE_FIGURES=$$(mktemp); \
	$(RUN) --group test --all-extras pytest $(SPREAD) --timeout 3000 $(or $(ARGS),tests) && \
	$(UV) run --no-sync python tools/write_figures.py "$$PERDURE_FIGURES"; \
	code=$$?; rm -f "$$PERDURE_FIGURES"; exit $$code

suites: $(OWN_UV) ## Run the suites of LangGraph, LangChain and deepagents on Perdure's savers; about an hour
	$(RUN) --group test --all-extras python -m tools.foreign_suites $(ARGS)

clients: $(OWN_UV) ## Run suites of clients and other servers on Perdure's; ARGS=--reference asks LangGraph's, too
	$(RUN) --group test --all-extras python -m tools.foreign_clients $(ARGS)

uis: $(OWN_UV) ## Drive chat interfaces written elsewhere over Perdure's server, in Chromium
	$(RUN) --group test --all-extras python -m tools.foreign_uis $(ARGS)

lint: $(OWN_UV) ## Check style, format, layers and the tree; seconds
	$(UV) sync --quiet --inexact --no-default-groups --group lint
	@failed=; \
	for check in "ruff check" "ruff format --check" "lint-imports --no-logo" "python tools/check_tree.py"; do \
		echo "--- $$check"; \
		$(UV) run --no-sync $$check || failed="$$failed  $$check\n"; \
	done; \
	if [ -n "$$failed" ]; then printf "\nlint failed:\n$$failed"; exit 1; fi

# Each of the two takes a minute: they run beside each other, and mypy prints when pyright is done.
types: $(OWN_UV) ## Check types with mypy and pyright; minutes
	$(UV) sync --quiet --inexact --no-default-groups --group lint --group test --all-extras
	@failed=; out=$$(mktemp); \
	$(UV) run --no-sync mypy >"$$out" 2>&1 & mypy=$$!; \
	echo "--- pyright"; $(UV) run --no-sync pyright || failed="$$failed  pyright\n"; \
	wait $$mypy || failed="$$failed  mypy\n"; \
	echo "--- mypy"; cat "$$out"; rm -f "$$out"; \
	if [ -n "$$failed" ]; then printf "\ntypes failed:\n$$failed"; exit 1; fi

fix: $(OWN_UV) ## Apply the fixes and the format of ruff, for most findings of make lint
	@$(RUN) --group lint ruff check --fix $(ARGS); found=$$?; \
	$(RUN) --group lint ruff format $(ARGS) && exit $$found

hooks: $(OWN_UV) ## Check style, format, layers and the tree before each commit, by pre-commit
	$(UV) sync --quiet --inexact --no-default-groups --group lint
	$(UV) tool run pre-commit install

bench: $(OWN_UV) ## Measure Perdure beside the stock savers; BACKENDS=sqlite,postgres for some
	$(RUN) --group bench --group test --extra server --extra encryption --extra postgres --extra redis --extra dynamodb --extra d1 \
		python -m bench $(if $(BACKENDS),--only $(BACKENDS)) $(ARGS)

histories: $(OWN_UV) ## Record calls of a deployment under faults and check them; ARGS="--minutes 60"
	$(RUN) --group test --all-extras python -m tools.history_checker $(ARGS)

soak: $(OWN_UV) ## Load two server processes on PostgreSQL and kill one every minute; ARGS="--minutes 60"
	$(RUN) --group bench --group test --extra server --extra postgres python -m bench.soak $(ARGS)

package: docs ## Build the documentation and the wheel, and run the README's programs from the wheel
	$(RUN) python -m tools.check_wheel

docs: $(OWN_UV) ## Build the documentation into site/
	$(RUN) --only-group docs mkdocs build --strict

clean: ## Remove everything that make has made; your databases stay
	rm -rf .venv .uv uv.lock tests/servers/d1/node_modules tests/server/js/node_modules tests/server/agui/node_modules tests/servers/aimock/node_modules site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/pip install --quiet uv
