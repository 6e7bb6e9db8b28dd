# Two commands: `make demo` shows the library at work, `make test` checks all of it. Both start from a bare checkout.
PYTHON ?= python3
BIN := .venv/bin
# Two workers with two torch threads each are ten times slower than with one: see tests/conftest.py.
WORKERS ?= 2

.PHONY: demo test soak bench lint install clean

# Two experiments of the paper, small: figures and a page to look at. What is in results/ already is not run again.
demo: install
	$(BIN)/orthoptim run pca --methods POGO,Landing,RGD
	$(BIN)/orthoptim run procrustes --methods POGO,Landing,RGD
	$(BIN)/orthoptim report

test: install lint
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup

# What takes minutes: the same claims at larger sizes.
soak: install
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m soak

# Against the peers; ratios, measured in one process.
bench: install
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[peers]'
	$(BIN)/orthoptim bench --growth

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

install: .venv/installed

# torch first and alone: anything that merely depends on it would fetch the newest build, with CUDA.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis dist build
