# mpsd: what a person, the CI and a package do, by name.  `make help` lists it; docs/install.md explains install.

PYTHON ?= python3
PIP_FLAGS ?=
PYTEST_FLAGS ?=
# The tests mostly wait: as many run at once as there are processors, up to eight.
JOBS ?= auto
AT_ONCE = --numprocesses $(JOBS) --maxprocesses 8 --dist loadfile
# Each process that runs tests imports all of them: 20 s of a processor if pytest keeps none of what it compiled, 6 s if it does.
unexport PYTHONDONTWRITEBYTECODE
TABLE_FLAGS ?=
DIST ?= dist

PREFIX ?= /opt/mpsd
BINDIR ?= /usr/bin
SYSCONFDIR ?= /etc
UNITDIR ?= /usr/lib/systemd/system
TMPFILESDIR ?= /usr/lib/tmpfiles.d
DATADIR ?= /usr/share
DESTDIR ?=
# `/` is none: it is this machine that is installed into.
override DESTDIR := $(patsubst %/,%,$(if $(DESTDIR),$(shell realpath -ms "$(DESTDIR)")))
WHEELS ?=
CONSTRAINTS ?= constraints.txt
FORCE ?=
DIVERT ?= $(shell command -v dpkg-divert)

VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -q install $(PIP_FLAGS)
INSTALLED_PIP := $(DESTDIR)$(PREFIX)/venv/bin/python -m pip --disable-pip-version-check -q install $(PIP_FLAGS)
CLIENTS := clients/python clients/mpsctl
PROGRAM := nvidia-cuda-mps-control
FRONT_END := clients/control/$(PROGRAM)
VENDOR := $(BINDIR)/$(PROGRAM).vendor
GENERATED := man/man1/mpsctl.1 bash-completion/completions/mpsctl zsh/vendor-completions/_mpsctl
BINDING_SOURCES := $(wildcard native/binding/*.py native/binding/*.h native/include/*.h clients/python/native/*) \
	$(shell find clients/c/include -name '*.h')

# Which Python an environment was made with; one made with another is made anew, since the two do not mix.
WHICH := -c 'import sys; print(sys.base_prefix, sys.version)'
make_venv = [ "$$($(1)/bin/python $(WHICH) 2>/dev/null)" = "$$($(PYTHON) $(WHICH))" ] || .ci/step "making $(1)" $(PYTHON) -m venv --clear $(1)

# One whose interpreter has gone, or is another user's who keeps it to themselves, is made anew too.
$(if $(wildcard $(VENV)/runtime),$(shell $(VENV)/bin/python -ESc '' 2>/dev/null || rm -f $(VENV)/runtime))

.DEFAULT_GOAL := build

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1@\2/p' Makefile | tr @ '\t' | expand -t 20

# A step that takes seconds prints its name first (.ci/step); one that has nothing to do is silent.
compile = $(MAKE) -q --no-print-directory -C $(1) $(3) >/dev/null 2>&1 || \
	.ci/step "compiling $(2)" $(MAKE) -s --no-print-directory -C $(1) $(3)

# One at a time, each with what it needs: together they are a long silence.  pip makes a folder's package anew also if its
# version has not changed.
install_each = for each in . $(CLIENTS); do \
		.ci/step "installing $$(sed -n 's/^name = "\(.*\)"/\1/p' $$each/pyproject.toml) into $(2)" $(1) ./$$each || exit 1; \
	done

needs:
	@PYTHON="$(PYTHON)" .ci/needs

venv: $(VENV)/bindings ## a virtual environment with mpsd in it
dev: $(VENV)/bindings $(VENV)/dev clients-of-tests ## ... and with what the tests need

$(VENV)/runtime: pyproject.toml setup.py $(CLIENTS:%=%/pyproject.toml) clients/python/setup.py | needs
	@$(call make_venv,$(VENV))
	@$(call install_each,$(PIP) -e,$(VENV))
	@touch $@

# The installation is editable, so what is compiled lies among the sources: made anew here when a header changes.
$(VENV)/bindings: $(VENV)/runtime $(BINDING_SOURCES)
	@.ci/step "compiling the daemon's binding between Python and C" sh -c '$(VENV)/bin/python native/binding/build.py >/dev/null'
	@.ci/step "compiling the Python client's" sh -c '$(VENV)/bin/python clients/python/native/build.py >/dev/null'
	@touch $@

$(VENV)/dev: $(VENV)/runtime
	@.ci/step "installing what the tests need into $(VENV)" $(PIP) -e '.[dev]'
	@touch $@

programs: | needs
	@$(call compile,clients/control,the front end)
	@$(call compile,native,the simulator,sim)
	@$(call compile,native,the keeper and the inspector,keeper inspector launcher sentinel)
	@$(call compile,clients/c,the C library)
	@[ "$$(uname -m)" != x86_64 ] || { $(call compile,clients/shim,the shim); }

clients-of-tests: programs
	@$(call compile,tests/clients,the clients of the tests)

build: programs venv ## the C programs, and the front end beside the interpreter
	@cmp -s $(FRONT_END) $(VENV)/bin/$(PROGRAM) || { made=$(VENV)/bin/$(PROGRAM).$$$$; install -m 755 $(FRONT_END) $$made && mv -fT $$made $(VENV)/bin/$(PROGRAM); }

run: build ## a one-minute scene: two tenants, one faults, the other goes on
	@$(VENV)/bin/python clients/demo/two_tenants.py

test: build dev ## the everyday tests, a few minutes; JOBS=1: one after the other
	@$(VENV)/bin/python -m pytest $(AT_ONCE) $(PYTEST_FLAGS)

test-slow: build dev ## the slow ones; no test selected is no failure
	@$(VENV)/bin/python -m pytest -m slow $(AT_ONCE) $(PYTEST_FLAGS) || test $$? -eq 5

test-kmod: build dev ## the kernel module, built and run in virtual machines: downloads and compiles for minutes
	@[ "$$(id -u)" != 0 ] || tests/kmod/setup
	@$(VENV)/bin/python -m pytest tests/kmod tests/hostile/test_process_reads.py -m kmod $(PYTEST_FLAGS)

test-engines: build dev ## packages, Ray, Slurm, a browser, all real: needs slurm-wlm munge chromium chromium-driver buildah crun prometheus, as root
	@$(VENV)/bin/python -m pytest tests/engines -m engines $(PYTEST_FLAGS)

transcripts: build dev ## docs/transcripts.md: the sessions of first users; needs what test-engines needs
	@MPSD_TRANSCRIPTS=write $(VENV)/bin/python -m pytest tests/engines -m engines -k session_of_a_first_user $(PYTEST_FLAGS)

table-kmod: build dev ## drivers, kernels, what was applied, built and booted; runs what has no result of these sources, an hour or more
	@[ "$$(id -u)" != 0 ] || tests/kmod/setup
	@$(VENV)/bin/python -m tests.kmod $(TABLE_FLAGS)

check: build dev ## before every commit: linters, types, then the everyday tests, cheapest first
	@tests/check

pictures: build dev ## docs/pictures anew: needs tmux, chromium and chromium-driver, as root
	@$(VENV)/bin/python -m tests.engines.pictures

bench: build dev ## the benchmarks; they print ratios
	@for each in tests/bench/bench_*.py; do echo "== $$each"; $(VENV)/bin/python $$each || exit 1; done

docs: venv ## the generated pages
	@$(VENV)/bin/python -m mpsd config --markdown > docs/configuration.md
	@$(VENV)/bin/python -m mpsd.api.protocol_page docs/protocol.md
	@$(VENV)/bin/python -m mpsd.api.client_values clients/python/mpsd_client
	@$(VENV)/bin/python -m mpsd.api.client_calls clients/python/mpsd_client/_calls.py

kernel: dev ## mpsd/images/imager/image_hash.ptx anew, which the GPU's driver compiles; needs no GPU
	@$(VENV)/bin/python native/kernel/build.py

site: dev ## the pages as a web site, in build/site
	@$(VENV)/bin/python -m mkdocs build --strict --quiet && echo "build/site/index.html"

# Each wheel is built from its source distribution; auditwheel names the oldest glibc that it runs with.
dist: $(VENV)/dev ## the source distributions and the wheels of mpsd and its clients, into DIST
	@rm -rf $(DIST)/built && mkdir -p $(DIST)/built
	@for each in . $(CLIENTS); do \
		echo "building $$(sed -n 's/^name = "\(.*\)"/\1/p' $$each/pyproject.toml) in $(DIST)"; \
		$(VENV)/bin/python -m build --no-isolation --outdir $(DIST)/built $$each >$(DIST)/built/log 2>&1 || { tail -30 $(DIST)/built/log; exit 1; }; \
	done
	@for each in $(DIST)/built/*-linux_*.whl; do \
		PATH="$(abspath $(VENV)/bin):$$PATH" $(VENV)/bin/python -m auditwheel repair -w $(DIST) $$each >$(DIST)/built/log 2>&1 || { cat $(DIST)/built/log; exit 1; }; \
	done
	@mv $(DIST)/built/*.tar.gz $(DIST)/built/*-any.whl $(DIST) && rm -r $(DIST)/built

# The second file is of the Kubernetes plugin's image, with the versions of the first.
RESOLVE = $(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --upgrade --generate-hashes --no-annotate --no-header \
	--no-emit-package mpsd-client --find-links $(DIST)
constraints: dist ## constraints.txt anew: the newest versions of what mpsd needs and is built with, and their hashes
	@printf '%s\n' 'setuptools>=77' 'cffi>=1.15' | $(RESOLVE) -o constraints.txt pyproject.toml $(CLIENTS:%=%/pyproject.toml) -
	@echo 'setuptools>=77' | $(RESOLVE) -c constraints.txt -o clients/kubernetes/constraints.txt clients/kubernetes/pyproject.toml -

# With Debian's own Python, on which the package depends; the wheels are for any.
deb: ## a Debian package of the wheels in DIST, into DIST; for the release that this runs on
	@rm -rf $(DIST)/root
	@$(MAKE) -s --no-print-directory install PYTHON=/usr/bin/python3 PREFIX=/opt/mpsd DESTDIR=$(abspath $(DIST))/root WHEELS=$(DIST)
	@clients/debian/build $(DIST)/root $(DIST) && rm -r $(DIST)/root

# For containers and hosts without Python: with the interpreter that this runs on, and its C library.
tree: ## an installation that brings its own Python, of the wheels in DIST, into DIST/tree
	@rm -rf $(DIST)/tree
	@$(MAKE) -s --no-print-directory install PREFIX=/opt/mpsd DESTDIR=$(abspath $(DIST))/tree WHEELS=$(DIST)
	@umask 022; PATH="$(abspath $(VENV)/bin):$$PATH" $(DIST)/tree/opt/mpsd/venv/bin/python3 -I clients/kubernetes/carry_python.py $(DIST)/tree /opt/mpsd
	@rm -rf $(DIST)/tree/opt/mpsd/venv/lib/python3*/site-packages/pip*

clean: ## back to a fresh checkout
	@$(MAKE) -s -C clients/control clean
	@$(MAKE) -s -C native clean
	@$(MAKE) -s -C clients/c clean
	@$(MAKE) -s -C clients/shim clean
	@rm -rf mpsd/_native.* clients/python/mpsd_client/_native.*
	@rm -rf $(VENV) build dist mpsd.egg-info $(CLIENTS:%=%/build) $(CLIENTS:%=%/*.egg-info) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find mpsd tests clients -name __pycache__ -prune -exec rm -rf {} +

# The vendor's program is moved aside, never overwritten; `uninstall` moves it back.  WHEELS: a directory of `make dist`, whose
# wheels are installed instead of these sources.  DESTDIR: the files are for a package, which cares for the vendor's program itself.
install: $(if $(WHEELS),,programs) ## into PREFIX, BINDIR, SYSCONFDIR, UNITDIR, TMPFILESDIR, DATADIR, below DESTDIR; as root
	@umask 022 && $(MAKE) -s --no-print-directory install-files

# What root runs later must not be the builder's, nor anybody's: the owner and the umask of the build are not taken over.  Nor
# may another user replace a directory on the way: in one with the sticky bit only those of their own.  Below these places the
# files that are kept or written in place, and a directory that another program reads, are judged too.
PLACES = $(PREFIX) $(BINDIR) $(SYSCONFDIR) $(UNITDIR) $(TMPFILESDIR) $(DATADIR)
KEPT = $(SYSCONFDIR)/mpsd/mpsd.toml $(SYSCONFDIR)/default/mpsd $(SYSCONFDIR)/logrotate.d $(GENERATED:%=$(DATADIR)/%)
refuse_others = [ "$$(id -u)" != 0 ] || [ "$(DESTDIR)" ] || .ci/refuse-others $(1)
# Root runs what is in an environment, and keeps it: one that others own a part of or can write to is removed before.
roots_own = [ "$$(id -u)" != 0 ] || { [ -d $(1) ] && [ ! -L $(1) ] && \
	others=$$(find $(1) \( ! -uid 0 -o ! -type l -perm /022 \) -print -quit) && [ -z "$$others" ]; } || { rm -rf $(1) && mkdir -m 755 $(1); }
# Nothing is fetched but what CONSTRAINTS names, by its hash: not for the build either.
PINNED = $(if $(CONSTRAINTS),--no-deps --no-build-isolation)
# Several installations may be made from one checkout at the same time.
MADE_FOR = build/install.$(shell printf %s '$(DESTDIR)$(PREFIX)' | cksum | cut -d ' ' -f 1)
# A program may be running, so a new file takes its name: nothing is written in place.
place = install -m $(1) $(2) $(3).new && mv -fT $(3).new $(3)
install-files:
	@$(call refuse_others,$(PLACES) $(KEPT))
	@install -d $(DESTDIR)$(PREFIX)
	@rm -rf clients/control/$(MADE_FOR) # it holds PREFIX, which make cannot see
	@.ci/step "compiling the front end for $(PREFIX)" $(MAKE) -s --no-print-directory -C clients/control OUT=$(MADE_FOR)/$(PROGRAM) MPSD_PYTHON_DEFAULT=$(PREFIX)/venv/bin/python3
	@strip clients/control/$(MADE_FOR)/$(PROGRAM)
	@$(call roots_own,$(DESTDIR)$(PREFIX)/venv)
	@$(call make_venv,$(DESTDIR)$(PREFIX)/venv)
	@rm -rf build/lib* build/temp* build/bdist.* $(CLIENTS:%=%/build)
	@[ -z "$(CONSTRAINTS)" ] || .ci/step "installing what $(CONSTRAINTS) names" $(INSTALLED_PIP) --only-binary=:all: --require-hashes -r $(CONSTRAINTS)
	@if [ "$(WHEELS)" ]; then .ci/step "installing the wheels in $(WHEELS)" $(INSTALLED_PIP) $(PINNED) --force-reinstall $(WHEELS)/*.whl; \
	else $(call install_each,$(INSTALLED_PIP) $(PINNED),$(DESTDIR)$(PREFIX)/venv); fi
	@[ -z "$(DESTDIR)" ] || grep -rlIF "$(DESTDIR)" $(DESTDIR)$(PREFIX)/venv/bin $(DESTDIR)$(PREFIX)/venv/pyvenv.cfg | xargs -r sed -i "s,$(DESTDIR),,g"
	@echo "copying the front end, manual page and service files into place"
	@echo "giving the files to their owner"
	@chmod -R go-w $(DESTDIR)$(PREFIX)/venv
	@[ "$$(id -u)" != 0 ] || chown -hR 0:0 $(DESTDIR)$(PREFIX)/venv
	@$(call place,755,clients/debian/in-use,$(DESTDIR)$(PREFIX)/in-use)
	@install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(SYSCONFDIR)/mpsd $(DESTDIR)$(SYSCONFDIR)/default $(DESTDIR)$(SYSCONFDIR)/logrotate.d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(TMPFILESDIR)
	@if [ "$(DESTDIR)" ]; then :; elif [ -n "$(DIVERT)" ]; then \
		$(DIVERT) --local --quiet --rename --divert $(VENDOR) --add $(BINDIR)/$(PROGRAM); \
	elif [ -e $(BINDIR)/$(PROGRAM) ] && ! grep -q mpsd-front-end $(BINDIR)/$(PROGRAM); then \
		mv -n $(BINDIR)/$(PROGRAM) $(VENDOR); \
	fi
	@$(call place,755,clients/control/$(MADE_FOR)/$(PROGRAM),$(DESTDIR)$(BINDIR)/$(PROGRAM))
	@rm -rf clients/control/$(MADE_FOR)
	@ln -sfn -t $(DESTDIR)$(BINDIR) $(PREFIX)/venv/bin/mpsctl $(PREFIX)/venv/bin/mpsd-images
	@echo "making the manual page and the completions"
	@install -d $(foreach each,$(GENERATED),$(DESTDIR)$(DATADIR)/$(dir $(each)))
	@$(DESTDIR)$(PREFIX)/venv/bin/python -I -m mpsctl.manual > $(DESTDIR)$(DATADIR)/man/man1/mpsctl.1
	@$(DESTDIR)$(PREFIX)/venv/bin/python -I -m mpsctl completion bash > $(DESTDIR)$(DATADIR)/bash-completion/completions/mpsctl
	@$(DESTDIR)$(PREFIX)/venv/bin/python -I -m mpsctl completion zsh > $(DESTDIR)$(DATADIR)/zsh/vendor-completions/_mpsctl
	@install -m 644 -t $(DESTDIR)$(UNITDIR) clients/systemd/mpsd.service clients/systemd/mpsd-devices.service
	@install -m 644 clients/systemd/mpsd.tmpfiles $(DESTDIR)$(TMPFILESDIR)/mpsd.conf
	@install -m 644 clients/systemd/mpsd.logrotate $(DESTDIR)$(SYSCONFDIR)/logrotate.d/mpsd
	@[ -e $(DESTDIR)$(SYSCONFDIR)/default/mpsd ] || install -m 644 clients/systemd/mpsd.default $(DESTDIR)$(SYSCONFDIR)/default/mpsd
	@[ -e $(DESTDIR)$(SYSCONFDIR)/mpsd/mpsd.toml ] || $(DESTDIR)$(PREFIX)/venv/bin/python -I -m mpsd config --defaults > $(DESTDIR)$(SYSCONFDIR)/mpsd/mpsd.toml
	@[ "$(DESTDIR)" ] || echo "installed: $(BINDIR)/$(PROGRAM) is mpsd's; the vendor's, if there was one, is $(VENDOR)"
	@[ "$(DESTDIR)" ] || echo "next: $(PREFIX)/venv/bin/mpsd check"

uninstall: ## undo install; SYSCONFDIR/mpsd stays; refuses while a process uses it, unless FORCE=1
	@[ -z "$(DESTDIR)" ] || { echo "nothing is removed: below DESTDIR=$(DESTDIR) only rm does that; without DESTDIR, this machine's is removed" >&2; exit 1; }
	@$(call refuse_others,$(PLACES))
	@[ "$(FORCE)" ] || clients/debian/in-use $(PREFIX)/venv || { \
		echo "nothing is removed: end them first (echo quit | $(PROGRAM)), or make uninstall FORCE=1" >&2; exit 1; }
	@if [ -e $(BINDIR)/$(PROGRAM) ] && grep -q mpsd-front-end $(BINDIR)/$(PROGRAM); then rm -f $(BINDIR)/$(PROGRAM); fi
	@if [ -n "$(DIVERT)" ]; then \
		$(DIVERT) --local --quiet --rename --divert $(VENDOR) --remove $(BINDIR)/$(PROGRAM); \
	elif [ -e $(VENDOR) ]; then \
		mv -n $(VENDOR) $(BINDIR)/$(PROGRAM); \
	fi
	@if [ "$$(readlink $(BINDIR)/mpsctl)" = $(PREFIX)/venv/bin/mpsctl ]; then \
		rm -f $(BINDIR)/mpsctl $(BINDIR)/mpsd-images $(GENERATED:%=$(DATADIR)/%); \
	fi
	@rm -rf $(PREFIX)/venv $(PREFIX)/in-use $(UNITDIR)/mpsd.service $(UNITDIR)/mpsd-devices.service $(TMPFILESDIR)/mpsd.conf $(SYSCONFDIR)/logrotate.d/mpsd
	@rmdir $(PREFIX) 2>/dev/null || true

.NOTPARALLEL:
.PHONY: help needs venv dev clients-of-tests programs build run test test-slow test-kmod transcripts table-kmod check pictures bench docs kernel dist constraints deb tree clean install install-files uninstall
