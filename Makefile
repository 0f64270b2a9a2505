# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem: the library, the command, the kernel modules. `make help` says what there is.

VERSION	= 0.1.0
SOVERSION = 0

PREFIX	?= /usr/local
LIBDIR	?= $(PREFIX)/lib
BINDIR	?= $(PREFIX)/bin
INCDIR	?= $(PREFIX)/include
MANDIR	?= $(PREFIX)/share/man
UDEVDIR	?= /lib/udev/rules.d
UNITDIR	?= /lib/systemd/system
MODLOADDIR ?= /usr/lib/modules-load.d
DKMSDIR	?= /usr/src
BASHDIR	?= $(PREFIX)/share/bash-completion/completions
ZSHDIR	?= $(PREFIX)/share/zsh/site-functions
FISHDIR	?= $(PREFIX)/share/fish/vendor_completions.d
PYTHONDIR ?= $(PREFIX)/lib/python3/dist-packages
DESTDIR	?=
KDIR	?= /lib/modules/$(shell uname -r)/build
INSTALL	?= install
PYTHON	?= python3
ifeq ($(origin CC),default)
CC	= gcc
endif
CFLAGS	?= $(if $(SAN),-O1,-O2) -g
CXXFLAGS ?= -O2 -g

# SAN=address,undefined or SAN=thread: the same with a sanitizer, in its own place.
ifneq ($(SAN),)
B	:= build/$(if $(findstring thread,$(SAN)),tsan,asan)
sanflags = -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
else
B	:= build
endif

comma	:= ,
warnings = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
cppflags = -D_GNU_SOURCE -DHETMEM_VERSION_STRING='"$(VERSION)"' \
	   -include $(B)/config.h -Iinclude -Iinclude/uapi -Ilib $(CPPFLAGS)
cflags	 = -std=gnu11 $(warnings) -fvisibility=hidden -fPIC $(sanflags) $(CFLAGS)
ldflags	 = -Wl,--as-needed $(sanflags) $(LDFLAGS)

soft_src := $(sort $(wildcard lib/soft/*.c))
preload_src := $(sort $(wildcard lib/preload/*.c))
# Its jumps are written for one processor.
cuda_src := $(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),$(sort $(wildcard lib/cuda/*.c)))
cuda_so	 := $(if $(cuda_src),libhetmem-cuda.so)
lib_src	 := $(filter-out $(soft_src) $(preload_src) $(wildcard lib/cuda/*.c),$(sort $(shell find lib -name '*.c' 2>/dev/null)))
tool_src := $(sort $(shell find tools -name '*.c' ! -path 'tools/python/*' 2>/dev/null))
test_src := $(sort $(shell find selftests/lib selftests/soft -name '*.c' 2>/dev/null))
man_pages := $(wildcard Documentation/man/*.[1-8])
# Pages that generate.py writes: each function has one, or a link to one.
man_made := hetmem.3 hetmem.4 hetmem_emu.4 hetmem-spec.7 \
	$(shell sed -n 's/^\t\t*\(hetmem_[a-z0-9_]*\);$$/\1.3/p' lib/libhetmem.map)

lib_obj	 := $(lib_src:%.c=$(B)/obj/%.o)
# The soft driver has a core and the module's calls of its own.
soft_obj := $(soft_src:%.c=$(B)/obj/%.o) \
	$(patsubst %,$(B)/obj/lib/%.o,core/error core/thread core/fork core/range core/size platform/detect \
		platform/kernel platform/kmod platform/maps platform/numa)
preload_obj := $(preload_src:%.c=$(B)/obj/%.o)
cuda_obj := $(cuda_src:%.c=$(B)/obj/%.o)
tool_obj := $(tool_src:%.c=$(B)/obj/%.o)
lib_tests := $(test_src:selftests/%.c=$(B)/selftests/%)
named	 = $(foreach t,$(lib_tests),$(if $(filter $(1)_%,$(notdir $t)),$t))
vm_tests := $(call named,vm)
gpu_tests := $(call named,gpu)
host_tests := $(filter-out $(vm_tests) $(gpu_tests),$(lib_tests))
run_tests := $(patsubst selftests/%.c,$(B)/selftests/%,$(filter-out %/early.c,\
	$(wildcard selftests/run/*.c))) $(B)/selftests/run/early.so
libktest_src := $(sort $(wildcard selftests/kernel/libktest/*.c))
fuzz_src := $(sort $(wildcard selftests/kernel/fuzz/*.c))
kernel_src := $(filter-out $(libktest_src) $(fuzz_src),$(sort $(wildcard selftests/kernel/*/*.c)))
kernel_tests := $(kernel_src:selftests/%.c=$(B)/selftests/%)
fuzzer	 := $(B)/selftests/kernel/fuzz/fuzz
cmakedir = $(LIBDIR)/cmake/hetmem
dirs	 = $(addprefix $(DESTDIR),$(LIBDIR)/pkgconfig $(LIBDIR)/hetmem $(cmakedir) $(INCDIR)/hetmem \
		$(INCDIR)/linux $(BINDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR))

ifeq ($(V),1)
Q	=
say	= @:
else
Q	= @
say	= @printf '  %-7s %s\n'
endif

all: $(B)/libhetmem.so $(B)/libhetmem-soft.so $(B)/libhetmem-preload.so $(B)/libhetmem.a $(B)/hetmem \
	$(addprefix $(B)/,$(cuda_so))

# make check-headers DIR...: the directories are goals that need nothing done.
ifneq ($(filter check-headers,$(MAKECMDGOALS)),)
header_dirs := $(filter-out check-headers,$(MAKECMDGOALS))
.PHONY: $(header_dirs)
$(header_dirs): ; @:
endif

# What this machine has of the optional libraries is asked on every run; what was
# found goes to config.h and config.mk, which change only when the answer does.
quick := clean help module modules_install modules_uninstall dkms_install uninstall check \
	check-long check-nightly check-busy check-mutants check-headers deb rpm demo bench-kernel bench-pullback $(header_dirs)
ifneq ($(filter-out $(quick),$(or $(MAKECMDGOALS),all)),)
found := $(shell lib/detect $(B) '$(CC)' '$(sanflags) $(CFLAGS) $(LDFLAGS)' >&2 && echo yes)
ifneq ($(found),yes)
$(error stopped)
endif
include $(B)/config.mk
endif

# The last thing that is read on the screen is what this build lacks.
ifneq ($(and $(found),$(file <$(B)/missing)),)
all:
	@cat $(B)/missing >&2
endif

# Everything is compiled again when what it is compiled with changes.
flags := $(CC) $(cppflags) $(cflags) $(ldflags)
ifneq ($(found),)
ifneq ($(flags),$(file <$(B)/flags))
$(file >$(B)/flags,$(flags))
endif
endif

# A subcommand's folder and what the subcommands share.
$(B)/obj/tools/%.o: cppflags += -Itools

# A page is part of the command.
$(B)/obj/tools/page/page.o: tools/page/page.html

$(B)/obj/%.o: %.c $(B)/flags $(B)/config.h
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(cppflags) $(cflags) -MMD -MP -c -o $@ $<

# Threads call it at their end: it stays where it was loaded.
$(B)/libhetmem.so $(B)/python/libhetmem.so: $(lib_obj) lib/libhetmem.map
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) -shared -Wl,-soname,libhetmem.so.$(SOVERSION) -Wl,-z,nodelete \
		-Wl,--version-script=lib/libhetmem.map -Wl,-z,defs $(ldflags) \
		-o $@ $(lib_obj) $(lib_libs)
	$(Q)ln -sf libhetmem.so $@.$(SOVERSION)

$(B)/libhetmem-soft.so $(B)/python/libhetmem-soft.so: $(soft_obj) lib/soft/libhetmem-soft.map
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) -shared -Wl,-soname,libhetmem-soft.so -Wl,-z,nodelete \
		-Wl,--version-script=lib/soft/libhetmem-soft.map -Wl,-z,defs $(ldflags) \
		-o $@ $(soft_obj) $(lib_libs)

# What 'hetmem run' puts into programs. It replaces malloc, as sanitizers do: it has none.
# Its own functions call each other, not a program's of the same name.
$(B)/libhetmem-preload.so $(B)/python/libhetmem-preload.so: sanflags =
$(preload_obj): cppflags += -fno-builtin
$(B)/libhetmem-preload.so $(B)/python/libhetmem-preload.so: $(preload_obj) lib/preload/libhetmem-preload.map
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) -shared -Wl,-soname,libhetmem-preload.so -Wl,-Bsymbolic-functions \
		-Wl,--version-script=lib/preload/libhetmem-preload.map -Wl,-z,defs $(ldflags) \
		-o $@ $(preload_obj)

# What 'hetmem run --device' puts before libcuda.so.1. The library in it must not find the dlsym()
# of this object, which replaces the driver's functions. A sanitizer's runtime calls dlsym() before
# it can run code that it checks: a sanitized object exports none.
$(B)/obj/libhetmem-cuda.map: lib/cuda/libhetmem-cuda.map
	@mkdir -p $(@D)
	$(Q)$(if $(SAN),sed '/^\t\tdlv*sym;$$/d',cat) $< >$@

$(B)/libhetmem-cuda.so $(B)/python/libhetmem-cuda.so: $(cuda_obj) $(B)/libhetmem.a $(B)/obj/libhetmem-cuda.map
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) -shared -Wl,-soname,libhetmem-cuda.so -Wl,-Bsymbolic -Wl,--wrap=dlsym \
		-Wl,--version-script=$(B)/obj/libhetmem-cuda.map -Wl,-z,defs $(ldflags) \
		-o $@ $(cuda_obj) $(B)/libhetmem.a $(lib_libs)

$(B)/libhetmem.a: $(lib_obj)
	$(say) AR $@
	$(Q)rm -f $@
	$(Q)$(AR) qcs $@ $(lib_obj)

# tools/hold.c stands between the library and its mutexes.
wraps	:= $(patsubst %,-Wl$(comma)--wrap=pthread_%,mutex_lock mutex_trylock mutex_unlock \
	cond_wait cond_timedwait)
$(B)/hetmem $(B)/python/hetmem: $(tool_obj) $(B)/libhetmem.a
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ldflags) $(wraps) -o $@ $(tool_obj) $(B)/libhetmem.a $(lib_libs) $(tool_libs)

# The Python package has them in one folder, with the libraries that they need beside them.
# tools/python/backend.py makes the wheel; pip calls it, too.
$(B)/python/%: ldflags += -Wl,--strip-debug,--disable-new-dtags,-rpath,'$$ORIGIN'

python-parts: $(addprefix $(B)/python/,libhetmem.so libhetmem-soft.so libhetmem-preload.so $(cuda_so) \
	libhetmem-torch.so libhetmem-cupy.so hetmem)

# It needs no header of PyTorch. The one beside the wheel's libraries finds them by RPATH.
torch_src = tools/python/torch_plain.cc tools/python/torch_unified.cc
$(B)/libhetmem-torch.so: $(B)/libhetmem.so
$(B)/python/libhetmem-torch.so: $(B)/python/libhetmem.so
$(B)/libhetmem-torch.so $(B)/python/libhetmem-torch.so: $(torch_src) include/hetmem.h include/hetmem/framework.h
	$(say) CXX $@
	$(Q)$(CXX) -std=c++17 $(CPPFLAGS) $(CXXFLAGS) -fPIC -shared -fvisibility=hidden -Wall -Wextra \
		-Iinclude -Iinclude/uapi -Wl,-soname,libhetmem-torch.so $(ldflags) -Wl,-z,defs \
		-o $@ $(torch_src) $(@D)/libhetmem.so

# It has no header of Python, whose functions the loader finds in the process.
$(B)/libhetmem-cupy.so: $(B)/libhetmem.so
$(B)/python/libhetmem-cupy.so: $(B)/python/libhetmem.so
$(B)/libhetmem-cupy.so $(B)/python/libhetmem-cupy.so: tools/python/cupy_calls.c include/hetmem.h \
		include/hetmem/framework.h
	$(say) CC $@
	$(Q)$(CC) -std=gnu11 $(CPPFLAGS) $(CFLAGS) -fPIC -shared -fvisibility=hidden -Wall -Wextra -Iinclude \
		-Iinclude/uapi -Wl,-soname,libhetmem-cupy.so $(ldflags) -o $@ $< $(@D)/libhetmem.so

# The part of full mode that is compiled with PyTorch's headers: a companion for each minor version.
# Without the right one hetmem.torch compiles one for the PyTorch that is installed.
# TORCH_VERSIONS are in the wheel, if their headers were fetched. TORCH_VERSION is for tests.
TORCH_VERSIONS ?= 2.13.0 2.14.1 2.15.0
TORCH_VERSION ?= 2.11.0
XDG_CACHE_HOME ?= $(HOME)/.cache
torch_dir = $(XDG_CACHE_HOME)/hetmem/torch-$(1)
torch_so = $(B)/python/libhetmem-torch-$(basename $(1)).so
torch_cached = $(foreach v,$(TORCH_VERSIONS),$(if $(wildcard $(call torch_dir,$(v))/fetched),$(call torch_so,$(v))))

torch-companion: $(call torch_so,$(TORCH_VERSION))
torch-companions: $(foreach v,$(TORCH_VERSIONS),$(call torch_so,$(v)))

# Headers are fetched once for all trees of a user.
define torch_rules
$(call torch_dir,$(1))/fetched:
	$$(say) FETCH $$(@D)
	$$(Q)tools/python/fetch-torch $$(@D) $(1) && touch $$@

$(call torch_so,$(1)): tools/python/torch_full.cc include/hetmem.h $$(wildcard include/hetmem/*.h) \
		$(call torch_dir,$(1))/fetched $$(B)/python/libhetmem.so
	$$(say) CXX $$@
	$$(Q)$$(CXX) -std=c++20 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Iinclude -Iinclude/uapi \
		-isystem $(call torch_dir,$(1))/torch/include \
		-isystem $(call torch_dir,$(1))/torch/include/torch/csrc/api/include \
		$$$$(printf ' -isystem %s' $(call torch_dir,$(1))/nvidia/*/include) -Wl,--no-as-needed \
		-Wl,--strip-debug -o $$@ $$< $$(B)/python/libhetmem.so $(call torch_dir,$(1))/lib/*.so
endef
$(foreach v,$(sort $(TORCH_VERSION) $(TORCH_VERSIONS)),$(eval $(call torch_rules,$(v))))

# What the wheel has: no companion that was compiled of older sources, or for a test.
python-companions: $(torch_cached)
	@mkdir -p $(B)/python
	$(Q)printf '%s\n' $(notdir $^) >$(B)/python/companions

wheel: python-parts python-companions
	$(say) WHEEL $(B)/wheel
	$(Q)$(PYTHON) tools/python/backend.py $(B)/wheel

# hetmem beside RMM, see selftests/gpu/replay_rmm.cpp. A machine without a network needs only
# $(B)/rmm, and $(B)/libhetmem.so beside it. RMM's own CMake files have the same options.
rmm	:= $(B)/rmm-wheels
rmm_flags = -std=c++20 -O2 -Wall -Wextra -Iinclude -Iinclude/uapi -Itools \
	-DCCCL_DISABLE_PDL -DCUB_DISABLE_NAMESPACE_MAGIC -DCUB_IGNORE_NAMESPACE_MAGIC_ERROR \
	-DTHRUST_DISABLE_ABI_NAMESPACE -DTHRUST_IGNORE_ABI_NAMESPACE_ERROR \
	$(patsubst %,-isystem $(rmm)/%/include,librmm rapids_logger nvidia/cuda_runtime nvidia/cuda_nvcc) \
	-isystem $(rmm)/librmm/include/rapids
rmm_libs = $(rmm)/librmm/lib64/librmm.so $(rmm)/rapids_logger/lib64/librapids_logger.so

rmm: $(B)/rmm/replay_rmm

$(rmm)/fetched: selftests/gpu/fetch-rmm
	$(say) FETCH $(@D)
	$(Q)selftests/gpu/fetch-rmm $(@D) && touch $@

$(B)/rmm/replay_rmm: selftests/gpu/replay_rmm.cpp tools/replay/trace.h $(rmm)/fetched Makefile \
		$(patsubst %,$(B)/obj/tools/%.o,replay/trace util) $(B)/libhetmem.so
	@mkdir -p $(@D)
	$(say) CXX $@
	$(Q)cp $(rmm_libs) $(@D)/
	$(Q)$(CXX) $(rmm_flags) $(ldflags) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN:$$ORIGIN/..' -o $@ \
		$(filter %.cpp %.o %.so,$^) $(rmm_libs) $(rmm)/nvidia/cuda_runtime/lib/libcudart_static.a \
		$(tool_libs) -ldl -lrt -lpthread

# <hetmem/resource.hpp> under RMM's own resources; the program of its page in RMM_SOURCE.
$(B)/rmm/resource: selftests/cpp/rmm.cpp selftests/cpp/tap.hpp
$(B)/rmm/page: $(RMM_SOURCE)
$(B)/rmm/resource $(B)/rmm/page: include/hetmem/resource.hpp $(rmm)/fetched Makefile \
		$(B)/libhetmem.so
	@mkdir -p $(@D)
	$(say) CXX $@
	$(Q)cp $(rmm_libs) $(@D)/
	$(Q)$(CXX) $(rmm_flags) $(ldflags) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN:$$ORIGIN/..' -o $@ \
		$(filter %.cpp,$^) $(filter %.so,$^) $(rmm_libs) \
		$(rmm)/nvidia/cuda_runtime/lib/libcudart_static.a -ldl -lrt -lpthread

# Blocks sent by UCX, see selftests/gpu/ucx.c. A machine without a network needs only
# $(B)/transports, and $(B)/libhetmem.so beside it.
ucx := $(B)/ucx-wheels

transports: $(B)/transports/ucx

$(ucx)/fetched: selftests/gpu/fetch-ucx
	$(say) FETCH $(@D)
	$(Q)selftests/gpu/fetch-ucx $(@D) && touch $@

$(B)/transports/ucx: selftests/gpu/ucx.c $(ucx)/fetched include/hetmem.h $(wildcard include/hetmem/*.h) \
		Makefile $(B)/libhetmem.so
	$(say) CC $@
	$(Q)rm -rf $(@D) && mkdir -p $(@D)/libucx
	$(Q)cp -r $(ucx)/libucx/lib $(@D)/libucx/ && cp -r $(ucx)/libucx_*.libs $(@D)/
	$(Q)$(CC) -std=gnu11 -O2 -Wall -Wextra -Iinclude -Iinclude/uapi -isystem $(ucx)/libucx/include \
		$(ldflags) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/libucx/lib:$$ORIGIN/..' -o $@ $< \
		$(B)/libhetmem.so $(@D)/libucx/lib/libucp.so.0 $(@D)/libucx/lib/libucs.so.0 -ldl

# hetmem beside torch_memory_saver, see selftests/gpu/memory_saver.
memory-saver: $(B)/memory-saver/fetched

$(B)/memory-saver/fetched: selftests/gpu/fetch-memory-saver
	$(say) FETCH $(@D)
	$(Q)selftests/gpu/fetch-memory-saver $(@D) && touch $@

# Programs that test: TAP on stdout. Those of selftests/lib and selftests/soft run on the
# host. Exceptions: vm_* need the modules, as those of selftests/kernel do, and run in the
# virtual machine; gpu_* need a GPU and libcuda.so.1.
host-tests: $(host_tests) $(B)/libhetmem.so $(B)/libhetmem-soft.so
gpu-tests: $(gpu_tests) $(B)/libhetmem-soft.so
vm-tests: $(vm_tests) $(kernel_tests) $(fuzzer) $(B)/libhetmem-soft.so

$(B)/obj/selftests/%: cppflags += -Iselftests -Iselftests/lib
# There are more of them than of the library's files.
$(B)/obj/selftests/% $(B)/selftests/kernel/%: private CFLAGS = -O1 -g

# They find the soft driver in the build directory: by RPATH, which a sanitizer that stands
# between a program and dlopen() leaves in force.
counted_tests := $(addprefix $(B)/selftests/lib/pool/,bounded recorded_holds sparse_steps steps)
$(filter-out $(counted_tests),$(lib_tests)): $(B)/selftests/%: $(B)/obj/selftests/%.o $(B)/libhetmem.a
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ldflags) -Wl,--disable-new-dtags,-rpath,$(abspath $(B)) -o $@ $^ $(lib_libs) $(tool_libs)

# These count the basic blocks that the library executes, see selftests/lib/count_blocks.h. The
# C library's functions that take longer for more bytes are counted by their bytes. The limits
# are those of -O2, whatever CFLAGS are.
counted_obj := $(lib_src:%.c=$(B)/counted/%.o)
counted_wraps := $(addprefix -Wl$(comma)--wrap=,memset memcpy memmove memcmp malloc calloc realloc)

$(B)/counted/%.o: %.c $(B)/flags $(B)/config.h
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(cppflags) $(cflags) -O2 -fsanitize-coverage=trace-pc -MMD -MP -c -o $@ $<

$(counted_tests): $(B)/selftests/%: $(B)/obj/selftests/%.o $(counted_obj)
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ldflags) $(counted_wraps) -Wl,--disable-new-dtags,-rpath,$(abspath $(B)) -o $@ $^ \
		$(lib_libs) $(tool_libs)

# The gate of libhetmem-cuda.so, alone.
$(B)/selftests/lib/cuda/gate: $(B)/obj/lib/cuda/gate.o

# It is a keeper, as 'hetmem keep' is.
$(B)/selftests/lib/keep/keep: $(addprefix $(B)/obj/tools/,keep.o options.o util.o table.o)
$(B)/selftests/lib/keep/keep: ldflags += -Wl,--wrap=calloc
# These read recordings as 'hetmem replay' does.
replaying := $(addprefix selftests/lib/pool/,figures recorded_holds)
$(replaying:%=$(B)/%): $(addprefix $(B)/obj/tools/,replay/trace.o util.o)
$(replaying:%=$(B)/obj/%.o): cppflags += -Itools

# Programs that 'hetmem run' runs: they know nothing of hetmem, and no compiler knows malloc().
run-tests: $(run_tests)
run_flags = -std=gnu11 -D_GNU_SOURCE $(warnings) $(CFLAGS) -fno-builtin -Iselftests/lib \
	-Iinclude/uapi -MMD -MP -MF $@.d

$(B)/selftests/run/early.so: selftests/run/early.c $(B)/flags
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(run_flags) -fPIC -shared -o $@ $<

$(B)/selftests/run/%: selftests/run/%.c $(B)/flags
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) $(run_flags) -o $@ $< -ldl -lpthread

# Programs that 'hetmem run --device' runs, and a libcuda.so.1 for them: selftests/cuda/libcuda.c.
cuda_test_dir := $(B)/selftests/cuda
cuda_tests := $(addprefix $(cuda_test_dir)/,libcuda.so.1 another.so reach reach-linked \
	$(patsubst selftests/cuda/%.c,%,$(filter-out %/another.c %/libcuda.c %/reach.c,$(wildcard selftests/cuda/*.c))))
cuda-tests: $(B)/libhetmem-soft.so $(addprefix $(B)/,$(cuda_so)) $(if $(cuda_src),$(cuda_tests))
cuda_test_flags = $(cppflags) $(cflags) -Iselftests -MMD -MP -MF $@.d

$(cuda_test_dir)/libcuda.so.1: selftests/cuda/libcuda.c $(B)/flags
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(cuda_test_flags) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic \
		-Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../..' -o $@ $< -ldl -lpthread

$(cuda_test_dir)/another.so: selftests/cuda/another.c $(B)/flags
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(cuda_test_flags) -shared -o $@ $< -ldl

$(cuda_test_dir)/reach: selftests/cuda/reach.c $(B)/flags
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) $(cuda_test_flags) -o $@ $< -ldl -lpthread

$(cuda_test_dir)/reach-linked: selftests/cuda/reach.c $(cuda_test_dir)/libcuda.so.1 $(B)/flags
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) $(cuda_test_flags) -DLINKED -Wl,-rpath,'$$ORIGIN' -o $@ $< $(@D)/libcuda.so.1 -ldl -lpthread

$(cuda_test_dir)/%: selftests/cuda/%.c $(cuda_test_dir)/libcuda.so.1 $(B)/flags
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) $(cuda_test_flags) -Wl,-rpath,'$$ORIGIN' -o $@ $< $(@D)/libcuda.so.1 -ldl -lpthread

# The kernel's own test driver's interface comes with its test harness, see below.
foreign = $(patsubst %,$(B)/obj/selftests/lib/hint/vm_emu_%_foreign.o,agent hint)
$(foreign): cppflags += -isystem $$(cat $(B)/harness)
$(foreign): $(B)/harness

# The kernel's test harness comes from the kernel's sources, see selftests/vm/harness.
ktest_flags = $(cppflags) -Iselftests/kernel -isystem $$(cat $(B)/harness) -std=gnu11 \
	$(sanflags) $(CFLAGS) -Wall -Wstrict-prototypes

$(B)/selftests/kernel/%: selftests/kernel/%.c $(B)/libktest.a $(B)/flags $(B)/harness
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) $(ktest_flags) -MMD -MP -MF $@.d -o $@ $< $(B)/libktest.a \
		$(ldflags) -lnuma -lpthread

# The example of Documentation/kernel-interface.md, for the tests that run it.
example_tests := $(addprefix $(B)/selftests/kernel/abi/,example emu_example)
$(example_tests): cppflags += -I$(B)
$(example_tests): $(B)/interface_example.c
$(B)/interface_example.c: Documentation/kernel-interface.md
	@mkdir -p $(@D)
	$(Q)awk '/^```c$$/ { on = 1; next } /^```$$/ { on = 0 } on' $< | \
		sed 's|/\* \.\.\. start threads .* \*/|example_threads(p, size);|' >$@
	$(Q)grep -q 'example_threads(p, size);' $@

$(fuzzer): $(fuzz_src:%.c=$(B)/obj/%.o) $(B)/libktest.a
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ldflags) -o $@ $^ -lpthread

$(B)/libktest.a: $(libktest_src:%.c=$(B)/obj/%.o)
	$(say) AR $@
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $^

$(B)/obj/selftests/kernel/%.o: selftests/kernel/%.c $(B)/flags $(B)/harness
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(ktest_flags) -Wextra -Wno-unused-parameter \
		-Wmissing-prototypes -MMD -MP -c -o $@ $<

$(B)/harness: FORCE
	$(Q)dir=$$(selftests/vm/harness) && [ "$$dir" = "$$(cat $@ 2>/dev/null)" ] || \
		echo "$$dir" >$@

# As for the kernel's own build a compiler counts on the command line only; the other
# variables count in the environment, too.
given	 = $(foreach v,$(1),$(if $(filter $(2),$(firstword $(origin $(v)))),'$(v)=$($(v))'))
module_variables = $(call given,CC LD,command) \
	$(call given,LLVM ARCH CROSS_COMPILE,command environment)
build_module = W=$(W) C=$(C) V=$(V) WERROR=$(WERROR) \
	kernel/build-module '$(KDIR)' build '$(MODULE_OUT)' $(module_variables)

module:
	+$(Q)$(build_module)

check-headers:
	+$(Q)kernel/check-headers $(B)/headers $(module_variables) \
		$(or $(header_dirs),$(wildcard /lib/modules/*/build))

# T='PATTERN...' F='FOLDER...' SEED=N, see Documentation/testing.md
run_tests_with = $(if $(SEED),-s '$(SEED)') $(patsubst %,-f '%',$(F)) $(patsubst %,'%',$(T))

check:
	$(Q)selftests/run-tests $(run_tests_with)

# PACKAGES=no leaves out what makes a Debian of its own.
check-long:
	$(Q)PACKAGES='$(PACKAGES)' selftests/run-tests -t long $(run_tests_with)

check-nightly:
	$(Q)selftests/run-tests -t nightly $(run_tests_with)
	$(Q)selftests/run-tests -b 8 $(run_tests_with)

# Every test twice, beside 8 processes that use the processors.
check-busy:
	$(Q)selftests/run-tests -b 8 $(run_tests_with)

# M='NAME...', see selftests/mutants/list
check-mutants:
	$(Q)selftests/mutants/run $(M)

# T=SECONDS of each SEED=N
random_tests := $(addprefix $(B)/selftests/lib/,model/model place/random adaptor/classes)
check-random: all host-tests
	$(Q)selftests/long $(if $(T),-t $(T)) $(if $(SEED),-s $(SEED)) \
		$(foreach test,$(random_tests),'$(test) SEED')

# T=SECONDS K=KERNEL SEED=N
fuzz: $(fuzzer)
	$(Q)selftests/vm/fuzz -v $(if $(T),-t $(T)) $(if $(K),-k $(K)) $(if $(SEED),-s $(SEED))

check-gpu: all host-tests gpu-tests
	$(Q)prove --exec '' --failures --comments $(host_tests) $(gpu_tests)
	$(Q)$(B)/hetmem doctor

demo:
	$(Q)selftests/demo

bench-kernel:
	$(Q)selftests/bench-kernel

bench-pullback:
	$(Q)HETMEM_BENCH=pullback selftests/bench-kernel

# Values for what is installed from *.in.
fill	 = sed -e 's|@LIBDIR@|$(LIBDIR)|; s|@INCDIR@|$(INCDIR)|; s|@VERSION@|$(VERSION)|g' \
	-e 's|@BINDIR@|$(BINDIR)|' \
	-e 's|@SOVERSION@|$(SOVERSION)|g' \
	-e "s|@RELATIVE_INCDIR@|$$(realpath -m --relative-to='$(cmakedir)' '$(INCDIR)')|"
# Whether a directory outside of PREFIX is ours to write: a user's own may be.
may_write = may_write() { [ "$$(id -u)" -eq 0 ] || [ -n '$(DESTDIR)' ] || \
	{ $(INSTALL) -d "$$1" && [ -w "$$1" ]; } 2>/dev/null; }; may_write

# Manual pages. Without Python those that are written by hand remain.
man: $(B)/man/made
html: $(B)/html/made

$(B)/man/made: Documentation/man/generate.py Documentation/spec.md lib/libhetmem.map Makefile \
		$(wildcard Documentation/man/* include/hetmem.h include/hetmem/*.h include/uapi/linux/*.h)
	$(Q)rm -rf $(@D) && mkdir -p $(@D)
	$(Q)cp $(man_pages) $(@D)/
	$(Q)if $(PYTHON) -c '' 2>/dev/null; then \
		$(PYTHON) -B Documentation/man/generate.py $(@D) $(VERSION) && touch $@; \
	else \
		echo 'left out: manual pages of section 3, hetmem(4) and hetmem-spec(7), which need python3'; fi

# Links between pages are relative: NAME.SECTION.html
$(B)/html/made: $(B)/man/made
	$(Q)command -v mandoc >/dev/null || { echo 'make html: no mandoc, type: apt-get install mandoc' >&2; exit 2; }
	$(say) HTML $(@D)
	$(Q)rm -rf $(@D) && mkdir -p $(@D)
	$(Q)for page in $(B)/man/*.[1-8]; do \
		if [ -h $$page ]; then \
			ln -s $$(readlink $$page).html $(@D)/$${page##*/}.html; \
		else \
			mandoc -T html -O man=%N.%S.html $$page >$(@D)/$${page##*/}.html; \
		fi || exit; done
	$(Q)touch $@

install: all man
	$(say) INSTALL '$(DESTDIR)$(PREFIX)'
	$(Q)$(INSTALL) -d $(dirs)
	$(Q)$(INSTALL) -m 755 $(B)/libhetmem.so $(DESTDIR)$(LIBDIR)/libhetmem.so.$(VERSION)
	$(Q)ln -sf libhetmem.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libhetmem.so.$(SOVERSION)
	$(Q)ln -sf libhetmem.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libhetmem.so
	$(Q)$(INSTALL) -m 755 $(B)/libhetmem-soft.so $(DESTDIR)$(LIBDIR)/
	$(Q)$(INSTALL) -m 755 $(B)/libhetmem-preload.so $(addprefix $(B)/,$(cuda_so)) $(DESTDIR)$(LIBDIR)/hetmem/
	$(Q)$(INSTALL) -m 644 $(B)/libhetmem.a $(DESTDIR)$(LIBDIR)/
	$(Q)$(INSTALL) -m 644 include/hetmem.h $(DESTDIR)$(INCDIR)/
	$(Q)$(INSTALL) -m 644 include/hetmem/*.h* $(DESTDIR)$(INCDIR)/hetmem/
	$(Q)$(INSTALL) -m 644 include/uapi/linux/*.h $(DESTDIR)$(INCDIR)/linux/
	$(Q)$(INSTALL) -m 755 $(B)/hetmem $(DESTDIR)$(BINDIR)/
	$(Q)for page in $(B)/man/*.[1-8]; do \
		to=$(DESTDIR)$(MANDIR)/man$${page##*.}; \
		$(INSTALL) -d $$to && cp -Pf $$page $$to/ && { [ -h $$page ] || chmod 644 $$to/$${page##*/}; } || exit; \
		done
	$(Q)for shell in bash:$(BASHDIR)/hetmem zsh:$(ZSHDIR)/_hetmem \
		fish:$(FISHDIR)/hetmem.fish; do \
		$(B)/hetmem completion $${shell%%:*} >"$(DESTDIR)$${shell#*:}" || exit; done
	$(Q)$(fill) lib/hetmem.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/hetmem.pc
	$(Q)$(fill) lib/hetmem-config.cmake.in >$(DESTDIR)$(cmakedir)/hetmem-config.cmake
	$(Q)$(fill) lib/hetmem-config-version.cmake.in \
		>$(DESTDIR)$(cmakedir)/hetmem-config-version.cmake
	$(Q)if $(may_write) $(UDEVDIR); then \
		$(INSTALL) -D -m 644 kernel/60-hetmem.rules $(DESTDIR)$(UDEVDIR)/60-hetmem.rules; \
	else \
		echo 'left out: $(UDEVDIR)/60-hetmem.rules, which needs root; /dev/hetmem has the same mode without it'; fi
	$(Q)if $(may_write) $(UNITDIR); then \
		$(INSTALL) -d $(DESTDIR)$(UNITDIR) && \
		$(fill) tools/hetmem-tune.service.in >$(DESTDIR)$(UNITDIR)/hetmem-tune.service; \
	else \
		echo "left out: $(UNITDIR)/hetmem-tune.service, which needs root; type 'hetmem tune --restore' after each boot"; fi
	$(Q)if [ -n '$(DESTDIR)' ]; then :; elif [ "$$(id -u)" -eq 0 ]; then ldconfig || :; else \
		echo 'left out: ldconfig, which needs root; type: export LD_LIBRARY_PATH=$(LIBDIR)'; fi

# What may be empty after uninstall, the innermost first. A prefix of the system stays.
emptied	 = $(LIBDIR)/hetmem $(LIBDIR)/pkgconfig $(cmakedir) $(LIBDIR)/cmake $(INCDIR)/hetmem \
	$(INCDIR)/linux $(BASHDIR) $(dir $(BASHDIR)) $(ZSHDIR) $(dir $(ZSHDIR)) \
	$(FISHDIR) $(dir $(FISHDIR)) \
	$(foreach n,1 3 4 7,$(MANDIR)/man$(n)) $(MANDIR) \
	$(if $(filter-out /usr /usr/local,$(PREFIX)),$(LIBDIR) $(BINDIR) $(INCDIR) \
		$(PREFIX)/share $(PREFIX))

uninstall:
	rm -f $(addprefix $(DESTDIR),$(LIBDIR)/libhetmem.so $(LIBDIR)/libhetmem.so.$(SOVERSION) \
		$(LIBDIR)/libhetmem.so.$(VERSION) $(LIBDIR)/libhetmem-soft.so \
		$(LIBDIR)/hetmem/libhetmem-preload.so $(LIBDIR)/hetmem/libhetmem-cuda.so $(LIBDIR)/libhetmem.a \
		$(LIBDIR)/pkgconfig/hetmem.pc $(INCDIR)/hetmem.h \
		$(cmakedir)/hetmem-config.cmake $(cmakedir)/hetmem-config-version.cmake \
		$(BASHDIR)/hetmem $(ZSHDIR)/_hetmem $(FISHDIR)/hetmem.fish \
		$(patsubst include/%,$(INCDIR)/%,$(wildcard include/hetmem/*.h*)) \
		$(patsubst include/uapi/%,$(INCDIR)/%,$(wildcard include/uapi/linux/*.h)) \
		$(BINDIR)/hetmem \
		$(foreach p,$(man_pages) $(man_made),$(MANDIR)/man$(subst .,,$(suffix $p))/$(notdir $p)))
	$(Q)for dir in $(emptied); do \
		[ ! -d "$(DESTDIR)$$dir" ] || rmdir --ignore-fail-on-non-empty "$(DESTDIR)$$dir"; done
	$(Q)if $(may_write) $(UDEVDIR); then rm -f $(DESTDIR)$(UDEVDIR)/60-hetmem.rules; fi
	$(Q)if $(may_write) $(UNITDIR); then rm -f $(DESTDIR)$(UNITDIR)/hetmem-tune.service; fi

# The Python package as a distribution has it: the library and the command are packages of
# their own.
python_install: $(B)/libhetmem-torch.so $(B)/libhetmem-cupy.so
	$(Q)$(PYTHON) tools/python/backend.py --system '$(DESTDIR)$(PYTHONDIR)' $^

modules_install:
	+$(Q)$(build_module) 'INSTALL_MOD_PATH=$(DESTDIR)'
	$(Q)$(INSTALL) -D -m 644 kernel/modules-load.conf $(DESTDIR)$(MODLOADDIR)/hetmem.conf

modules_uninstall:
	rm -f $(DESTDIR)$(MODLOADDIR)/hetmem.conf
	$(Q)for dir in $(wildcard $(DESTDIR)/lib/modules/*/updates/hetmem); do \
		echo rm -rf $$dir && rm -rf $$dir || exit; \
		release=$${dir%/updates/hetmem}; release=$${release##*/}; \
		[ -n '$(DESTDIR)' ] || depmod $$release; done

# What DKMS builds for each kernel that is installed.
dkms	 = $(DKMSDIR)/hetmem-$(VERSION)
dkms_src = Makefile Kbuild COPYING \
	$(shell find kernel include/linux include/uapi -type f)
dkms_install:
	$(say) INSTALL '$(DESTDIR)$(dkms)'
	$(Q)rm -rf $(DESTDIR)$(dkms)
	$(Q)for file in $(dkms_src); do \
		$(INSTALL) -D -m $$([ -x $$file ] && echo 755 || echo 644) \
			$$file $(DESTDIR)$(dkms)/$$file || exit; done
	$(Q)$(INSTALL) -m 644 kernel/dkms.conf $(DESTDIR)$(dkms)
	$(Q)$(INSTALL) -D -m 644 kernel/modules-load.conf $(DESTDIR)$(MODLOADDIR)/hetmem.conf
	$(Q)[ -n '$(DESTDIR)' ] || echo "type: dkms install hetmem/$(VERSION)"

# RPM packages, in $(B)/rpm/. RPMFLAGS are options of rpmbuild.
rpm:
	$(say) RPM $(B)/rpm
	$(Q)tools/rpm/build '$(B)' '$(VERSION)' $(RPMFLAGS)

# Debian packages, in $(B)/deb/.
deb:
	$(say) DEB $(B)/deb
	$(Q)tools/debian/build '$(B)' '$(VERSION)' '$(SOVERSION)'

clean:
	rm -rf build

help:
	@echo 'make                    the library and the command, in build/'
	@echo 'make module [KDIR=dir]  hetmem.ko and hetmem_emu.ko for that kernel (default: the'
	@echo '                        running one) in build/ and in MODULE_OUT=dir'
	@echo 'make demo               watch memory move to a device and back'
	@echo 'make check [T=pattern]  the tests, 15 minutes; or those of selftests/t/ with that name,'
	@echo '                        those that failed (T=failed), of sources (F=folder, F=auto)'
	@echo 'make check-long         the other tests, 50 minutes; also: check-nightly, check-busy'
	@echo 'make check-mutants      do tests notice an allocator that lacks a wait? (10 minutes)'
	@echo 'make check-random [T=600 SEED=1]  randomized tests, seed after seed, T seconds of each'
	@echo 'make check-gpu          the library on a machine with a GPU'
	@echo 'make rmm memory-saver transports   peers for selftests/gpu/measure, which pip fetches'
	@echo 'make wheel              the Python package, in build/wheel/'
	@echo 'make torch-companions   fetches PyTorch (2 GB); the wheel then has full mode compiled'
	@echo 'make fuzz [T=60 K=stock-7 SEED=n]'
	@echo '                        the ioctl fuzzer, T seconds, in a virtual machine with kernel K'
	@echo 'make bench-kernel       what the module costs, in a virtual machine; also: bench-pullback'
	@echo 'make install            to DESTDIR and PREFIX (default /usr/local); also: uninstall'
	@echo 'make man html           the manual pages, in build/man/, and as HTML in build/html/'
	@echo 'make python_install     the Python package without the library, for distributions'
	@echo 'make deb                Debian packages of all of it, in build/deb/'
	@echo 'make rpm                RPM packages, in build/rpm/'
	@echo 'make modules_install    the modules [KDIR=dir], loaded at boot; also: modules_uninstall'
	@echo 'make dkms_install       what dkms builds the modules from, for each kernel'
	@echo 'make check-headers DIR...  the modules for these headers; selftests/headers: all of Debian'
	@echo 'make clean              removes build/'
	@echo
	@echo 'CC=gcc CFLAGS="-O2 -g"  what to compile with'
	@echo 'SAN=address,undefined   with sanitizers, into build/asan/ (thread: build/tsan/)'
	@echo 'V=1                     shows the commands'
	@echo 'W=1 C=2 WERROR=1        for module: warnings, sparse, warnings are errors'

FORCE:
.PHONY: all man html python_install host-tests gpu-tests vm-tests run-tests cuda-tests rmm transports memory-saver python-parts python-companions \
	torch-companion torch-companions wheel module check \
	check-long check-nightly check-busy check-random check-mutants check-headers fuzz check-gpu demo \
	bench-kernel bench-pullback install uninstall \
	modules_install modules_uninstall dkms_install deb rpm clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:

-include $(patsubst %.c,$(B)/obj/%.d,$(lib_src) $(soft_src) $(preload_src) $(cuda_src) $(tool_src) $(test_src))
-include $(counted_obj:.o=.d)
-include $(run_tests:=.d) $(cuda_tests:=.d)
-include $(kernel_tests:=.d) $(patsubst %.c,$(B)/obj/%.d,$(libktest_src) $(fuzz_src))
