# `make run` and `make test` need only python3, pip, git and make; everything else is set up here.

PYTHON ?= python3
VENV ?= .venv
RELEASE ?= 0.5.12.post1
# Per cent of the lines of the codemods that the tests run.
COVERED := 98

BIN := $(VENV)/bin
DEMO := build/demo
PRISTINE := $(DEMO)/sglang-$(RELEASE)
PATCHED := $(DEMO)/sglang-$(RELEASE)-patched
TYPED := build/typed/sgl_npu_patch

# Tests start the program hundreds of times: its modules are to be compiled once, not each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all lint typecheck docs docs-torch-npu refresh refresh-server bench clean

run: $(VENV)/run.stamp $(PRISTINE)/sglang
	rm -rf $(PATCHED)
	cp -R $(PRISTINE) $(PATCHED)
	$(BIN)/sgl-npu-patch apply $(PATCHED)
	@echo
	$(BIN)/sgl-npu-patch status $(PATCHED)
	@echo
	@git --no-pager diff --no-index --stat $(PRISTINE) $(PATCHED) || test $$? -eq 1

test: lint typecheck
	$(BIN)/python -m pytest -n 2 -m "not slow"

# All tests, also those that take long or start a server, and the coverage of the codemods. What a
# server needs exists for Python 3.11 and later.
test-all: $(VENV)/server.stamp lint typecheck
	$(BIN)/python -m pytest -n 2 --cov=codemods --cov-report=term-missing:skip-covered \
	  --cov-fail-under=$(COVERED)

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --select E501 --line-length 88 npu_ops
	$(BIN)/black --check --quiet npu_ops
	$(BIN)/isort --check --quiet npu_ops

# The series lives in folders at the root, so it is laid out under its installed names first.
typecheck: $(VENV)/test.stamp
	rm -rf build/typed
	mkdir -p $(TYPED)
	for part in src/sgl_npu_patch/* codemods npu_ops templates; do ln -s "$$PWD/$$part" $(TYPED); done
	$(BIN)/mypy

# Writes docs/seams.md from the docstrings of the codemods.
docs: $(VENV)/run.stamp
	$(BIN)/python docs/generate.py

# Writes docs/torch-npu.md from the wheels of torch_npu, which are large.
docs-torch-npu: $(VENV)/run.stamp
	$(BIN)/python docs/torch_npu.py

# Rewrites what the tests compare with: statuses and edits of the releases, cases of the seams, the
# page of faults, the simulator's schemas. Review the result as a diff.
refresh: $(VENV)/test.stamp
	$(BIN)/python -m tests.codemods.refresh
	$(BIN)/python -m tests.upstream.refresh
	$(BIN)/python -m tests.codemods.refresh
	$(BIN)/python -m tests.faults
	$(BIN)/python -m tests.simulator.refresh

# Runs the servers of eight releases, which takes half an hour, and writes docs/evidence/server.md.
refresh-server: $(VENV)/server.stamp
	$(BIN)/python -m tests.server

bench: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.bench_apply
	$(BIN)/python -m benchmarks.bench_matrix
	$(BIN)/python -m benchmarks.bench_cost

clean:
	rm -rf build $(VENV)

$(PRISTINE)/sglang: | $(VENV)/run.stamp
	rm -rf $(PRISTINE)
	$(BIN)/sgl-npu-patch fetch $(RELEASE) $(PRISTINE)

$(VENV)/run.stamp: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/test.stamp: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/run.stamp

$(VENV)/server.stamp: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test,server]'
	touch $@ $(VENV)/test.stamp $(VENV)/run.stamp

# Debian splits ensurepip from python3: there, the pip outside fills the environment.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else \
	  "sgl-npu-patch needs Python 3.10 or newer, and $(PYTHON) is %d.%d: make PYTHON=python3.11" % v[:2])'
	$(PYTHON) -m venv $(VENV) || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
