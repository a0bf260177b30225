# `make demo` and `make test` are all that a fresh machine needs; Python 3.11 and make are all that they need.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
READY := .venv/.ready
COMPILED := .venv/.compiled

# Tests start many processes; without bytecode each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo docs site dist test test-full test-hosts test-gpu test-gpu-full differential record fuzz simulate mutate lint format bench clean

help:  ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	@touch $@

demo: $(INSTALLED)  ## lay out the quickstart on a simulated machine
	$(BIN)/memtopo apply specs/quickstart.yaml --machine h200x2

docs: $(READY)  ## write those pages of docs/ that are made from the program's own texts
	$(BIN)/memtopo schema spec > docs/spec.schema.json
	$(BIN)/python docs/make_rules.py
	$(BIN)/python docs/make_fields.py
	$(BIN)/python docs/make_gallery.py
	$(BIN)/python docs/make_fact_index.py
	$(BIN)/python -m docs.make_simulated_calls
	$(BIN)/python -m docs.make_captured_functions
	$(BIN)/python -m docs.make_figures

site: $(READY)  ## build docs/ as a site into build/site, and fail on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict # not --quiet, with which it misses warnings

dist: $(READY)  ## build the wheel and the source distribution of a release into dist/
	$(BIN)/python -m hatchling build -t sdist -t wheel

# Each file in one process: its tests share a cluster, a browser or what a compiler made. In the order of the collection,
# which begins with the files that take longest (tests/conftest.py).
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder

# Once, since otherwise each worker compiles all tests for itself.
$(COMPILED): $(READY)
	$(BIN)/python -m pytest --collect-only -qq > /dev/null
	@touch $@

test: $(COMPILED)  ## run the tests
	$(BIN)/python -m pytest $(PARALLEL) -q $(if $(DAY),--exhaustive-day $(DAY))

test-full: $(COMPILED)  ## run the tests, those that take minutes too
	$(BIN)/python -m pytest $(PARALLEL) -q -m "exhaustive or not exhaustive"

test-hosts: $(READY)  ## run memtopo in pinned releases of vLLM and others, which are downloaded; docs/hosts.md
	$(BIN)/python -m pytest --hosts -q tests/hosts

GPU_TESTS := tests/contract tests/gpu tests/api/test_on_gpu.py tests/api/test_gpu_sharing.py \
	tests/programs/test_on_gpu.py

test-gpu:  ## run the contract and GPU tests on a real GPU, with PY=python3; installs nothing, fails without a GPU
	PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PY) -m pytest --gpu -q $(GPU_TESTS)

test-gpu-full:  ## run them with every crash point, which takes ten minutes more
	PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PY) -m pytest --gpu -q -m "exhaustive or not exhaustive" $(GPU_TESTS)

differential: $(READY)  ## replay the recorded sequences of driver calls on the simulator, and report differences by kind
	for file in $(or $(FILE),tests/differential/traces/*.xz); do $(BIN)/python -m tests.differential replay $$file || exit 1; done

SECONDS ?= 60
FIRST ?= $(shell date +%s)000

record:  ## record random sequences on a real GPU, with PY=python3, into FILE=….xz as MACHINE=h100x1, for SECONDS=60
	PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PY) -m tests.differential record $(FILE) \
		--machine $(MACHINE) --seconds $(SECONDS) --first $(FIRST) --workers 4

fuzz: $(READY)  ## look for inputs that break the reader, for MEMTOPO_FUZZ_SECONDS=60 each; better with atheris
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python -m tests.fuzz.fuzz_source
	$(BIN)/python -m tests.fuzz.fuzz_spec

simulate: $(READY)  ## tell stories of holders and importers under a seeded scheduler, for SECONDS=60 from SEED=1 on
	$(BIN)/python -m tests.story --seconds $(SECONDS) --seed $(or $(SEED),1)

mutate: $(READY)  ## change the code, one small thing at a time, and list what no test finds; CONTRIBUTING.md has the options
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mutate]'
	$(BIN)/python -m tests.mutation $(PATHS) $(if $(ALL),--all) $(if $(AGAIN),--again) $(if $(DEPTH),--depth $(DEPTH)) \
		$(if $(SHARD),--shard $(SHARD)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
		$(if $(LIMIT),--limit $(LIMIT)) $(if $(BASE),--base $(BASE))

lint: $(READY)  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)  ## put the code in shape
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench:  ## measure, with PY=python3; installs nothing
	PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PY) -m bench

clean:  ## remove everything that was made
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
