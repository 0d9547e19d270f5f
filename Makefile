PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PORT ?= 7860
BENCH ?= --model demo --task carry --rows 200

.PHONY: setup demo test check bench bench-ui

setup: $(VENV)/.installed

# make the environment and install what the program needs
$(VENV)/.installed: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet -r requirements.txt
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(RUN) -m pip install --quiet -r requirements-dev.txt
	touch $@

# the demo search, once, and the dashboard
demo: setup
	$(RUN) -m cel_core demo
	$(RUN) app.py --port $(PORT)

# all tests; those in a browser are skipped with a reason where there is no Chromium
test: $(VENV)/.installed-dev
	$(RUN) -m pytest

# the engine beside the plain way; BENCH says on what, see docs/performance.md
bench: setup
	$(RUN) -m cel_core bench $(BENCH)

# the dashboard in a real Chromium, on a store of 50 searches and two million made-up outcomes
bench-ui: $(VENV)/.installed-dev
	$(RUN) -m scripts.bench_ui $(BENCH_UI)

# style and types
check: $(VENV)/.installed-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright --pythonpath $(RUN)
