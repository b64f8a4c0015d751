# Two commands for a newcomer: `make tour` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
JOBS ?= auto

.DEFAULT_GOAL := help
.PHONY: help setup tour test suite test-slow test-breaks test-field test-gpu test-wheel lint style types figures pictures docs test-triton-versions test-trainers clean

help: ## what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 30

setup: $(STAMP) ## build .venv with everything that the other targets need

$(STAMP): pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

tour: $(STAMP) ## see the product at work, in about a minute; ends with a page
	$(BIN)/tilesmith tour

# test_typing.py asks mypy again, and so comes after it: with mypy's cache, it takes seconds in place of a minute.
# Types are checked beside the tests: alone, mypy would leave all cores but one idle.
test: $(STAMP) style ## style, types and the fast tests that this machine can run
	@$(MAKE) --no-print-directory --jobs=2 types suite
	@$(BIN)/python tests/gpu_receipt.py changed

suite: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" --ignore=tests/test_typing.py

test-slow: $(STAMP) ## the slow tests: every variant of every kernel compiles, every exercise is verified
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m slow
	$(BIN)/tilesmith learn verify

test-breaks: $(STAMP) ## plant breaks in the sources, one at a time, and see the tests go red
	$(BIN)/python tests/breaks.py

test-field: $(STAMP) ## inspect over other people's kernels: installed ones, and FIELD="--root liger=FOLDER …"
	$(BIN)/python benchmarks/inspect/field.py $(FIELD) --compare benchmarks/inspect/field.json
	$(BIN)/python benchmarks/inspect/planted.py $(FIELD)

test-gpu: $(STAMP) ## the tests that need a GPU; writes tests/gpu-receipt.json
	$(BIN)/python tests/gpu_receipt.py run

test-wheel: $(STAMP) ## build the wheel and use it in fresh environments: WHEEL="--triton 3.6 3.9 --python python3.12"
	$(BIN)/python tests/wheels.py $(WHEEL)

lint: style types ## style and types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_typing.py

figures: $(STAMP) ## regenerate the shipped dispatch tables and the tables of README and docs from benchmarks/
	$(BIN)/python -m tilesmith.cli.winners
	$(BIN)/python -m tilesmith.cli.auto_models
	$(BIN)/python -m tilesmith.lab.doc_tables.generate

pictures: $(STAMP) ## take the screenshots of docs/images again (needs Chromium)
	$(BIN)/python tests/pictures.py

docs: $(STAMP) ## build the documentation site in site/; open site/index.html
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/sitemaker/build.py

# Without dependencies, since a CUDA build of PyTorch names the one release of Triton that it was built with.
test-triton-versions: $(STAMP) ## the toolchain, operator and inspect tests on every supported Triton release
	for version in 3.6 3.7 3.8 3.9; do \
	  $(PYTHON) -m venv --clear .venv-triton-$$version \
	  && .venv-triton-$$version/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch \
	  && .venv-triton-$$version/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' \
	  && .venv-triton-$$version/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "triton==$$version.*" \
	  && .venv-triton-$$version/bin/python -m pytest -n $(JOBS) -q tests/toolchain tests/ops tests/lab/inspect \
	  || exit 1; \
	done

# Each library at its current release, and at the oldest that docs/patch.md names. DeepSpeed is in the first only.
TRAINERS_newest := transformers trl peft accelerate datasets bitsandbytes deepspeed
TRAINERS_oldest := 'transformers==4.53.*' 'trl==0.19.*' 'peft==0.16.*' 'accelerate==1.8.*' 'datasets==3.6.*' 'bitsandbytes==0.46.*'
test-trainers: test-trainers-newest test-trainers-oldest ## the tests of patch with TRL, PEFT, Accelerate and others, newest and oldest

test-trainers-%:
	$(PYTHON) -m venv --clear .venv-trainers-$*
	.venv-trainers-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv-trainers-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' $(TRAINERS_$*)
	.venv-trainers-$*/bin/python -m pytest -n $(JOBS) -q -rs -m "not slow" tests/patch

clean: ## remove what the other targets made
	rm -rf $(VENV) .venv-* .pytest_cache .ruff_cache .mypy_cache build dist site tilesmith-tour.html
	find src tests -name __pycache__ -prune -exec rm -rf {} +
