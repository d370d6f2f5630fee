# What is run here is run in CI: .ci/run and .github/workflows call these targets.
#
# Every target works in .venv, which is made on first use and remade when pyproject.toml or constraints.txt change.

PYTHON ?= python3
BIN := .venv/bin
# What is imported is compiled once, not by every process: without bytecode a command takes two to three seconds to import.
unexport PYTHONDONTWRITEBYTECODE
STAMP := .venv/.installed
BENCH_STAMP := .venv/.installed-bench

.DEFAULT_GOAL := help

# What serves bins and makes batches. These tests pass without any package of the shelf.
CORE := $(addprefix tests/,chaos cli client compiling dataset epoch formats integration jobs packing prepare server storage \
	tokens topology types wire test_doctests.py test_house.py test_reruns.py test_types.py)

# Runs the tests with a mark, all or those in some folders. Only what is marked as depending on real time runs once more where it failed (status 1), alone
# on the machine; whatever else fails has failed. The second half imports only the files that have such tests.
define run-tests
$(BIN)/python -m pytest -n 2 --dist loadfile --durations 20 -m '($(1)) and not realtime' $(2)
files=$$(grep -rl --include='test_*.py' realtime $(or $(2),tests)); \
$(BIN)/python -m pytest -n 2 --dist loadfile --durations 20 -m '($(1)) and realtime' $$files || { [ $$? -eq 1 ] && \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m '($(1)) and realtime' $$files; }
endef

.PHONY: help demo test test-core test-long kernels check bench proto docs reference release clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 10

demo: $(STAMP) ## the whole way on this machine's own text: tokenize, prepare, serve, train, audit
	$(BIN)/packhorse demo

test: $(STAMP) ## checks, then all tests but benchmarks and long ones
	$(MAKE) --jobs 2 check kernels
	$(call run-tests,not benchmark and not long)

test-core: kernels ## the tests of what serves bins and makes batches, without the shelf
	$(call run-tests,not benchmark and not long and not shelf,$(CORE))

test-long: kernels ## the tests that take long: compiled models, several processes, every page of the guides
	$(call run-tests,long)

kernels: $(STAMP)
	$(BIN)/python -c 'from packhorse.server.base.kernels import compile_kernels; compile_kernels()' # once, not in every worker and server

check: $(STAMP) ## format, lint, types, import rules, proto lint and stale stubs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint proto
	$(BIN)/python proto/generate.py --check
	$(BIN)/python tests/docs/generate_map.py --check
	$(BIN)/python deploy/grafana/generate.py --check

bench: $(BENCH_STAMP) ## benchmarks, side by side with the packages they are compared to
	$(BIN)/python tests/benchmarks/run.py

release: $(STAMP) ## build wheel and sdist into dist, reproducibly; a real one with TAG=v0.1.0 REPOSITORY=https://github.com/OWNER/NAME
	@test -z "$(TAG)" || grep -qxF 'version = "$(TAG:v%=%)"' pyproject.toml || { echo "$(TAG) is not the version in pyproject.toml"; exit 1; }
	@test -z "$(TAG)" || test -n "$(REPOSITORY)" || { echo "a release says where it is from: add REPOSITORY=https://github.com/OWNER/NAME"; exit 1; }
	test -z "$(TAG)" || $(BIN)/python tests/surface/record.py --check
	rm -rf dist build/release
	$(BIN)/python deploy/release_tree.py build/release --repository "$(REPOSITORY)" --tag "$(TAG)"
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist build/release
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

proto: $(STAMP) ## regenerate the stubs from packing.proto
	$(BIN)/python proto/generate.py

docs: $(STAMP) ## the documentation site, strictly, into build/docs; DOCS_REPOSITORY=URL adds links to edit pages
	$(BIN)/sphinx-build -q -W --keep-going -c deploy/docs -d build/docs-trees . build/docs

reference: $(STAMP) ## write client/guides/reference-*.md, MAP.md and the dashboard from the code
	$(BIN)/python tests/docs/generate_reference.py
	$(BIN)/python tests/docs/generate_map.py
	$(BIN)/python deploy/grafana/generate.py

clean: ## remove what builds, checks and the demo leave behind; .venv stays
	rm -rf build dist demo-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find proto server client tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Packhorse needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[bench]'
	@touch $@
