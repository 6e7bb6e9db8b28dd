# `make demo` shows the library at work, `make test` runs all tests. Both start from a bare checkout.
PYTHON ?= python3
BIN := .venv/bin
# Two workers with two torch threads each are ten times slower than with one: see tests/conftest.py.
WORKERS ?= 2
# Seed of everything random.
SEED ?= 0

# The tests that coverage is measured with.
LIBRARY := tests src/orthoptim --ignore=tests/orthoptim_experiments

.PHONY: demo test test-integrations docs dist test-wheel test-floor kills coverage mutants soak fuzz bench lint install clean

# Two minutes: PCA with every method and a small squared unitary circuit; the report is in results/demo.
demo: install
	$(BIN)/orthoptim demo --open

test: install lint
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --durations=20 -rs

# The examples and the integrations, with Lightning, transformers, accelerate and PEFT.
test-integrations: .venv/integrations
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -rs -m 'integrations or not soak' tests/integrations

# Builds the site in docs/_build/html, offline; warnings are errors. Then runs every code block of its pages.
docs: .venv/docs
	$(BIN)/sphinx-build --fresh-env --write-all --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	$(BIN)/pytest -q -m docs tests/docs

# Builds the wheel and the source distribution in dist/, and checks both.
dist: .venv/release
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.release dist

# Tests the installed wheel in an environment that sees only the tests of this checkout.
test-wheel: dist
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	.venv-wheel/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl pytest hypothesis numpy
	cd tests && ../.venv-wheel/bin/python -c "import orthoptim; assert '.venv-wheel' in orthoptim.__file__, orthoptim.__file__"
	.venv-wheel/bin/pytest -q -p no:cacheprovider tests/test_groups.py tests/test_views.py tests/conformance/test_contract.py tests/optim

# The tests that depend most on torch's version, with the oldest one that is supported: constraints-floor.txt.
test-floor: .venv-floor/installed
	.venv-floor/bin/pytest -n $(WORKERS) --dist loadgroup tests/engine/test_compile.py tests/stiefel tests/conformance tests/robustness

# Kills 100 processes while they save: the checkpoint left behind loads, and resumes to the same bits.
kills: install
	$(BIN)/python -m tests.robustness.kills --count 100 --seed 0

# Branch coverage of the library; fails below the figure in pyproject.toml.
coverage: install
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term $(LIBRARY)

# Mutation testing of stiefel/ and base/; fails if the tests detect fewer than nine in ten changes of a formula.
MUTANTS ?= 220
mutants: install
	$(BIN)/python -m tests.mutation --count $(MUTANTS) --seed $(SEED) --jobs $(WORKERS)

# Minutes: the same claims at larger sizes.
soak: install
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m soak

# Hours: random sequences of operations (0.3 s each), then a search for the worst gradients.
SEQUENCES ?= 30000
TRIALS ?= 1000000
fuzz: install
	$(BIN)/python -m tests.fuzz --sequences $(SEQUENCES) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.adversary --trials $(TRIALS) --seed $(SEED)

# Ratios of times to those of other libraries, measured in one process.
bench: install
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[peers]'
	$(BIN)/orthoptim bench --growth

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src

install: .venv/installed

# torch first and alone: anything that merely depends on it would fetch the newest build, with CUDA.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

# Extras that `make test` does not need.
.venv/integrations .venv/docs .venv/release: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(@F)]'
	touch $@

.venv-floor/installed: pyproject.toml constraints.txt constraints-floor.txt
	$(PYTHON) -m venv .venv-floor
	grep -v -e '^torch==' -e '^triton==' constraints.txt > .venv-floor/constraints.txt
	.venv-floor/bin/pip install --quiet --disable-pip-version-check --requirement constraints-floor.txt
	.venv-floor/bin/pip install --quiet --disable-pip-version-check --constraint .venv-floor/constraints.txt \
		--constraint constraints-floor.txt --editable . pytest pytest-xdist hypothesis numpy
	touch $@

clean:
	rm -rf .venv .venv-floor .venv-wheel .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* dist build docs/_build docs/_figures docs/examples
