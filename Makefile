# Two commands: `make demo` shows the library at work, `make test` checks all of it. Both start from a bare checkout.
PYTHON ?= python3
BIN := .venv/bin
# Two workers with two torch threads each are ten times slower than with one: see tests/conftest.py.
WORKERS ?= 2
# Of everything that is drawn at random.
SEED ?= 0

# The library and its tests: what coverage is measured of.
LIBRARY := tests src/orthoptim --ignore=tests/orthoptim_experiments

.PHONY: demo test test-integrations docs dist test-wheel test-floor kills coverage mutants soak fuzz bench lint install clean

# Two minutes: PCA with every method, a small squared unitary circuit, and the page on both, in results/demo.
demo: install
	$(BIN)/orthoptim demo --open

test: install lint
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --durations=20 -rs

# The examples and the integrations, with the packages of other people that they are for.
test-integrations: .venv/integrations
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -rs -m 'integrations or not soak' tests/integrations

# The site, into docs/_build/html; needs no network, and a warning is an error. Then every code block of its pages runs.
docs: .venv/docs
	$(BIN)/sphinx-build --fresh-env --write-all --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	$(BIN)/pytest -q -m docs tests/docs

# The wheel and the source distribution, into dist/, checked.
dist: .venv/release
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.release dist

# The installed wheel, in an environment that has nothing of this checkout but its tests.
test-wheel: dist
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	.venv-wheel/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl pytest hypothesis numpy
	cd tests && ../.venv-wheel/bin/python -c "import orthoptim; assert '.venv-wheel' in orthoptim.__file__, orthoptim.__file__"
	.venv-wheel/bin/pytest -q -p no:cacheprovider tests/test_groups.py tests/test_views.py tests/conformance/test_contract.py tests/optim

# What depends most on torch's version, with the oldest one that pyproject.toml allows: constraints-floor.txt.
test-floor: .venv-floor/installed
	.venv-floor/bin/pytest -n $(WORKERS) --dist loadgroup tests/engine/test_compile.py tests/stiefel tests/conformance tests/robustness

# 100 processes killed while they save: what is left loads, and resumes to the same bits.
kills: install
	$(BIN)/python -m tests.robustness.kills --count 100 --seed 0

# Branch coverage of the library; fails below the figure in pyproject.toml.
coverage: install
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term $(LIBRARY)

# Mutation testing of stiefel/ and base/: fails if fewer than nine in ten changes of a formula make a test fail.
MUTANTS ?= 220
mutants: install
	$(BIN)/python -m tests.mutation --count $(MUTANTS) --seed $(SEED)

# What takes minutes: the same claims at larger sizes.
soak: install
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m soak

# Hours: random sequences of operations (0.3 s each), then the search for the worst gradients.
SEQUENCES ?= 30000
TRIALS ?= 1000000
fuzz: install
	$(BIN)/python -m tests.fuzz --sequences $(SEQUENCES) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.adversary --trials $(TRIALS) --seed $(SEED)

# Against the peers; ratios, measured in one process.
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

# One of the extras that `make test` does not need.
.venv/integrations .venv/docs .venv/release: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(@F)]'
	touch $@

.venv-floor/installed: pyproject.toml constraints.txt constraints-floor.txt
	$(PYTHON) -m venv .venv-floor
	grep -v '^torch==' constraints.txt > .venv-floor/constraints.txt
	.venv-floor/bin/pip install --quiet --disable-pip-version-check --requirement constraints-floor.txt
	.venv-floor/bin/pip install --quiet --disable-pip-version-check --constraint .venv-floor/constraints.txt \
		--constraint constraints-floor.txt --editable . pytest pytest-xdist hypothesis numpy
	touch $@

clean:
	rm -rf .venv .venv-floor .venv-wheel .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* dist build docs/_build docs/_figures docs/examples
