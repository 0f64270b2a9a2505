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
DESTDIR	?=
KDIR	?= /lib/modules/$(shell uname -r)/build
INSTALL	?= install
ifeq ($(origin CC),default)
CC	= gcc
endif
CFLAGS	?= -O2 -g

# SAN=address,undefined or SAN=thread: the same with a sanitizer, in its own place.
ifneq ($(SAN),)
B	:= build/$(if $(findstring thread,$(SAN)),tsan,asan)
sanflags = -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
else
B	:= build
endif

warnings = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
cppflags = -D_GNU_SOURCE -DHETMEM_VERSION_STRING='"$(VERSION)"' \
	   -include $(B)/config.h -Iinclude -Iinclude/uapi -Ilib $(CPPFLAGS)
cflags	 = -std=gnu11 $(warnings) -fvisibility=hidden -fPIC $(sanflags) $(CFLAGS)
ldflags	 = -Wl,--as-needed $(sanflags) $(LDFLAGS)

lib_src	 := $(sort $(shell find lib -name '*.c' 2>/dev/null))
tool_src := $(sort $(wildcard tools/*.c))
test_src := $(sort $(wildcard selftests/lib/*.c))
man_pages := $(wildcard Documentation/man/*.[1-8])

lib_obj	 := $(lib_src:%.c=$(B)/obj/%.o)
tool_obj := $(tool_src:%.c=$(B)/obj/%.o)
lib_tests := $(test_src:selftests/%.c=$(B)/selftests/%)
vm_tests := $(filter $(B)/selftests/lib/vm_%,$(lib_tests))
gpu_tests := $(filter $(B)/selftests/lib/gpu_%,$(lib_tests))
host_tests := $(filter-out $(vm_tests) $(gpu_tests),$(lib_tests))
kernel_tests := $(patsubst selftests/%.c,$(B)/selftests/%, \
	$(sort $(wildcard selftests/kernel/*.c)))
dirs	 := $(addprefix $(DESTDIR),$(LIBDIR)/pkgconfig $(INCDIR)/linux $(BINDIR) $(UDEVDIR))

ifeq ($(V),1)
Q	=
say	= @:
else
Q	= @
say	= @printf '  %-7s %s\n'
endif

all: $(B)/libhetmem.so $(B)/libhetmem.a $(B)/hetmem

# What this machine has of the optional libraries is asked on every run; what was
# found goes to config.h and config.mk, which change only when the answer does.
quick := clean help module modules_install uninstall check demo bench-kernel bench-pullback
ifneq ($(filter-out $(quick),$(or $(MAKECMDGOALS),all)),)
found := $(shell lib/detect $(B) '$(CC)' '$(sanflags) $(CFLAGS) $(LDFLAGS)' >&2 && echo yes)
ifneq ($(found),yes)
$(error stopped)
endif
include $(B)/config.mk
endif

# Everything is compiled again when what it is compiled with changes.
flags := $(CC) $(cppflags) $(cflags) $(ldflags)
ifneq ($(found),)
ifneq ($(flags),$(file <$(B)/flags))
$(file >$(B)/flags,$(flags))
endif
endif

$(B)/obj/%.o: %.c $(B)/flags $(B)/config.h
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(cppflags) $(cflags) -MMD -MP -c -o $@ $<

$(B)/libhetmem.so: $(lib_obj) lib/libhetmem.map
	$(say) LD $@
	$(Q)$(CC) -shared -Wl,-soname,libhetmem.so.$(SOVERSION) \
		-Wl,--version-script=lib/libhetmem.map -Wl,-z,defs $(ldflags) \
		-o $@ $(lib_obj) $(lib_libs)
	$(Q)ln -sf libhetmem.so $@.$(SOVERSION)

$(B)/libhetmem.a: $(lib_obj)
	$(say) AR $@
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(lib_obj)

$(B)/hetmem: $(tool_obj) $(B)/libhetmem.a
	$(say) LD $@
	$(Q)$(CC) $(ldflags) -o $@ $(tool_obj) $(B)/libhetmem.a $(lib_libs) $(tool_libs)

# Programs that test: TAP on stdout. Those of selftests/lib run on the host, but for
# vm_*, which like those of selftests/kernel need the modules and run in the virtual
# machine, and gpu_*, which need a GPU and libcuda.so.1.
host-tests: $(host_tests)
gpu-tests: $(gpu_tests)
vm-tests: $(vm_tests) $(kernel_tests)

$(B)/selftests/lib/%: $(B)/obj/selftests/lib/%.o $(B)/libhetmem.a
	@mkdir -p $(@D)
	$(say) LD $@
	$(Q)$(CC) $(ldflags) -o $@ $^ $(lib_libs) $(tool_libs)

# The kernel's own test driver's interface comes with its test harness, see below.
$(B)/obj/selftests/lib/vm_emu_hint_foreign.o: cppflags += -isystem $$(cat $(B)/harness)
$(B)/obj/selftests/lib/vm_emu_hint_foreign.o: $(B)/harness

# The kernel's test harness comes from the kernel's sources, see selftests/vm/harness.
$(B)/selftests/kernel/%: selftests/kernel/%.c $(B)/flags $(B)/harness
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) $(cppflags) -isystem $$(cat $(B)/harness) -std=gnu11 $(CFLAGS) \
		-Wall -Wstrict-prototypes $(sanflags) -MMD -MP -MF $@.d -o $@ $< \
		$(ldflags) -lnuma -lpthread

$(B)/harness: FORCE
	$(Q)dir=$$(selftests/vm/harness) && [ "$$dir" = "$$(cat $@ 2>/dev/null)" ] || \
		echo "$$dir" >$@

module:
	+$(Q)W=$(W) C=$(C) V=$(V) WERROR=$(WERROR) \
		kernel/build-module '$(KDIR)' build '$(MODULE_OUT)'

check:
	$(Q)selftests/run-tests $(T)

# T=SECONDS K=KERNEL SEED=N
fuzz: $(B)/selftests/kernel/fuzz
	$(Q)selftests/vm/fuzz -v $(if $(T),-t $(T)) $(if $(K),-k $(K)) $(if $(SEED),-s $(SEED))

check-gpu: all host-tests gpu-tests
	$(Q)prove --exec '' --failures --comments $(host_tests) $(gpu_tests)
	$(Q)$(B)/hetmem doctor || [ $$? -eq 1 ]

demo:
	$(Q)selftests/demo

bench-kernel:
	$(Q)selftests/bench-kernel

bench-pullback:
	$(Q)HETMEM_BENCH=pullback selftests/bench-kernel

install: all
	$(say) INSTALL '$(DESTDIR)$(PREFIX)'
	$(Q)$(INSTALL) -d $(dirs)
	$(Q)$(INSTALL) -m 755 $(B)/libhetmem.so $(DESTDIR)$(LIBDIR)/libhetmem.so.$(VERSION)
	$(Q)ln -sf libhetmem.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libhetmem.so.$(SOVERSION)
	$(Q)ln -sf libhetmem.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libhetmem.so
	$(Q)$(INSTALL) -m 644 $(B)/libhetmem.a $(DESTDIR)$(LIBDIR)/
	$(Q)$(INSTALL) -m 644 include/hetmem.h $(DESTDIR)$(INCDIR)/
	$(Q)$(INSTALL) -m 644 include/uapi/linux/*.h $(DESTDIR)$(INCDIR)/linux/
	$(Q)$(INSTALL) -m 755 $(B)/hetmem $(DESTDIR)$(BINDIR)/
	$(Q)$(INSTALL) -m 644 kernel/60-hetmem.rules $(DESTDIR)$(UDEVDIR)/
	$(Q)for page in $(man_pages); do $(INSTALL) -D -m 644 $$page \
		$(DESTDIR)$(MANDIR)/man$${page##*.}/$${page##*/}; done
	$(Q)sed -e 's|@LIBDIR@|$(LIBDIR)|; s|@INCDIR@|$(INCDIR)|; s|@VERSION@|$(VERSION)|' \
		lib/hetmem.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/hetmem.pc
	$(Q)[ -n '$(DESTDIR)' ] || ldconfig || :

uninstall:
	rm -f $(addprefix $(DESTDIR),$(LIBDIR)/libhetmem.so $(LIBDIR)/libhetmem.so.$(SOVERSION) \
		$(LIBDIR)/libhetmem.so.$(VERSION) $(LIBDIR)/libhetmem.a \
		$(LIBDIR)/pkgconfig/hetmem.pc $(INCDIR)/hetmem.h \
		$(patsubst include/uapi/%,$(INCDIR)/%,$(wildcard include/uapi/linux/*.h)) \
		$(BINDIR)/hetmem $(UDEVDIR)/60-hetmem.rules \
		$(foreach p,$(man_pages),$(MANDIR)/man$(subst .,,$(suffix $p))/$(notdir $p)))

modules_install: module
	$(Q)release=$$(sed -n 's/.*UTS_RELEASE "\(.*\)".*/\1/p' \
		$(KDIR)/include/generated/utsrelease.h) && \
	to=$(DESTDIR)/lib/modules/$$release/updates/hetmem && \
	$(INSTALL) -D -m 644 -t $$to \
		$(or $(MODULE_OUT),build/module-$$release)/hetmem*.ko && \
	{ [ -n '$(DESTDIR)' ] || depmod $$release; }

clean:
	rm -rf build

help:
	@echo 'make                    the library and the command, in build/'
	@echo 'make module [KDIR=dir]  hetmem.ko and hetmem_emu.ko for that kernel (default: the'
	@echo '                        running one) into MODULE_OUT=dir (default build/module-RELEASE)'
	@echo 'make demo               watch memory move to a device and back'
	@echo 'make check [T=pattern]  all tests, or those of selftests/t/ whose name matches'
	@echo 'make check-gpu          the library on a machine with a GPU'
	@echo 'make fuzz [T=60 K=stock-7 SEED=n]'
	@echo '                        the ioctl fuzzer, T seconds, in a virtual machine with kernel K'
	@echo 'make bench-kernel       what the module costs, in instructions, in a virtual machine'
	@echo 'make bench-pullback     likewise: bringing memory back from a device'
	@echo 'make install            to DESTDIR and PREFIX (default /usr/local); also: uninstall'
	@echo 'make modules_install    the modules [KDIR=dir]'
	@echo 'make clean              removes build/'
	@echo
	@echo 'CC=gcc CFLAGS="-O2 -g"  what to compile with'
	@echo 'SAN=address,undefined   with sanitizers, into build/asan/ (thread: build/tsan/)'
	@echo 'V=1                     shows the commands'
	@echo 'W=1 C=2 WERROR=1        for module: warnings, sparse, warnings are errors'

FORCE:
.PHONY: all host-tests gpu-tests vm-tests module check fuzz check-gpu demo bench-kernel \
	bench-pullback install uninstall \
	modules_install clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:

-include $(patsubst %.c,$(B)/obj/%.d,$(lib_src) $(tool_src) $(test_src))
-include $(kernel_tests:=.d)
