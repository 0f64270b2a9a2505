#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# hetmem doctor, on trees of files that look like other machines.
. "$(dirname "$0")/tools-lib.sh"

release=6.99.0-test

# put PATH TEXT: a file of the tree.
put()
{
	mkdir -p "$(dirname "$root$1")"
	printf '%s\n' "$2" >"$root$1"
}

# config LINE...: the kernel's configuration, with these lines changed.
config()
{
	local option

	{
		for option in MODULES DEVICE_PRIVATE HMM_MIRROR MMU_NOTIFIER MIGRATION \
			      TRANSPARENT_HUGEPAGE NUMA; do
			case " $* " in
			*" $option=n "*) echo "# CONFIG_$option is not set" ;;
			*) echo "CONFIG_$option=y" ;;
			esac
		done
	} >"$root/boot/config-$release"
}

# machine: a new tree, of a machine that lacks nothing: modules, open NVIDIA driver.
machine()
{
	root=$tmp/root
	rm -rf "$root"
	put /proc/sys/kernel/osrelease $release
	mkdir -p "$root/boot"
	config
	put /sys/module/hetmem/version 0.1
	mkdir -p "$root/sys/module/hetmem_emu"
	put /sys/module/module/parameters/sig_enforce N
	put /proc/sys/kernel/modules_disabled 0
	put /sys/kernel/security/lockdown '[none] integrity confidentiality'
	put /dev/hetmem ''
	chmod 666 "$root/dev/hetmem"
	put /proc/driver/nvidia/version \
		'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build'
	put /sys/module/nvidia_uvm/parameters/uvm_disable_hmm N
	put /sys/kernel/mm/transparent_hugepage/enabled 'always [madvise] never'
	put /sys/kernel/mm/transparent_hugepage/hpage_pmd_size 2097152
	put /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages 7
	put /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages 3
	put /sys/devices/system/node/node0/cpulist 0-3
	put /sys/devices/system/node/node0/distance '10 40'
	put /sys/devices/system/node/node1/cpulist ''
	put /sys/devices/system/node/node1/distance '40 10'
	put /proc/self/limits 'Max locked memory         unlimited            unlimited            bytes'
	put /proc/swaps $'Filename Type Size Used Priority\n/dev/sda2 partition 2097152 0 -2'
}

# system: what Debian has where modules are built and loaded.
system()
{
	put /etc/debian_version 12.1
	mkdir -p "$root/lib/modules/$release/build" "$root/etc/udev/rules.d" "$root/etc/modprobe.d"
	put "/lib/modules/$release/modules.dep" 'kernel/x.ko: kernel/y.ko'
	for command in udevadm modprobe mokutil apt-get dmesg; do put /usr/sbin/$command ''; done
	put /etc/security/limits.conf ''
}

# complains STATUS: the last run ended so, and stderr has a line for status 1 alone.
complains()
{
	[ "$status" -eq "$1" ] && [ "$(wc -l <"$tmp/err")" -eq "$1" ] &&
		{ [ "$1" -eq 0 ] || grep -q 'required, and does not work: ' "$tmp/err"; }
}

# says NAME STATUS PATTERN...: the exit status of --require all, and a line that matches each.
says()
{
	local name=$1 want=$2 pattern good=0

	shift 2
	run doctor --verbose --require all --sysroot "$root"
	complains "$want" || good=1
	for pattern; do
		grep -Eq -- "$pattern" "$tmp/out" || good=1
	done
	[ $good -eq 0 ]
	judge "$name"
}

machine
says 'a machine that has all: exit 0' 0 \
	"^ok +kernel +$release" "^ok +CONFIG_DEVICE_PRIVATE +y in /boot/config-$release" \
	'^ok +hetmem.ko +loaded, version 0.1' '^ok +hetmem_emu.ko' '^ok +module rules' \
	'^ok +/dev/hetmem +usable' '^ok +NVIDIA module +open, release 580.82.07' \
	'^ok +uvm_disable_hmm' '^ok +huge pages .*madvise, of 2 MiB' \
	'^ok +hugetlb pools +2 MiB: 7 \(3 free\)' \
	'^ok +NUMA nodes +2; without CPUs: 1; distances 0: 10 40, 1: 40 10' \
	'^ok +RLIMIT_MEMLOCK +unlimited' '^ok +swap +2 GiB, areas: 1' '^ok +memory moves'
! grep -q '^missing' "$tmp/out"
judge 'and nothing is missing'
run doctor --json --sysroot "$root"
cp "$tmp/out" "$tmp/json"
cat >"$tmp/check.pl" <<'EOP'
use JSON::PP;
local $/;
my $doctor = decode_json(<>);
die unless $doctor->{memory_moves} && $doctor->{missing} == 0;
my %check = map { $_->{name} => $_ } @{$doctor->{checks}};
die unless $check{'hetmem.ko'}{state} eq 'ok';
die unless $check{'NUMA nodes'}{why} =~ /^2;/;
EOP
check '--json: as in the table' perl "$tmp/check.pl" "$tmp/json"

machine
config DEVICE_PRIVATE=n
says 'no DEVICE_PRIVATE' 1 '^missing +CONFIG_DEVICE_PRIVATE +not set.*HMM.*; boot a kernel with the options' \
	'^missing +memory moves.*make demo'
! grep -q Debian "$tmp/out"
judge 'Debian is named on Debian alone'
put /etc/debian_version 12.1
says 'as here' 1 "^missing +CONFIG_DEVICE_PRIVATE .*boot a kernel .*Debian's 7.x"
rm -r "${root:?}/etc"
config HMM_MIRROR=n
says 'no HMM_MIRROR' 1 '^missing +CONFIG_HMM_MIRROR +not set'
config TRANSPARENT_HUGEPAGE=n NUMA=n
says 'without huge pages and NUMA it works' 0 '^note +CONFIG_TRANSPARENT_HUGEPAGE' \
	'^note +CONFIG_NUMA '
echo '# CONFIG_DEVICE_PRIVATE=y is what this is not' >>"$root/boot/config-$release"
config DEVICE_PRIVATE=n
echo '# CONFIG_DEVICE_PRIVATE=y' >>"$root/boot/config-$release"
says 'an option in a comment is not set' 1 '^missing +CONFIG_DEVICE_PRIVATE'
rm "$root/boot/config-$release"
says 'no configuration: said, and not held against it' 0 '^note +kernel configuration +not found'
mkdir -p "$root/lib/modules/$release/build"
echo 'CONFIG_HMM_MIRROR=y' >"$root/lib/modules/$release/build/.config"
says 'configuration beside the modules' 1 \
	"^ok +CONFIG_HMM_MIRROR +y in /lib/modules/$release/build/.config" \
	'^missing +CONFIG_DEVICE_PRIVATE'
config
gzip -c "$root/boot/config-$release" >"$root/proc/config.gz"
says '/proc/config.gz comes first' 0 '^ok +CONFIG_DEVICE_PRIVATE +y in /proc/config.gz'
machine
put /proc/sys/kernel/osrelease '../../etc/x'
says 'a release that is a path is not followed' 0 '^note +kernel configuration'

machine
put /proc/driver/nvidia/version \
	'NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024'
says 'proprietary NVIDIA module' 1 \
	'^missing +NVIDIA module +proprietary, release 535.183.01.*open kernel modules'
machine
put /sys/module/nvidia_uvm/parameters/uvm_disable_hmm Y
says 'uvm_disable_hmm' 1 '^missing +uvm_disable_hmm +set.*uvm_disable_hmm=0'
! grep -q modprobe.d "$tmp/out"
judge 'no directory is named that is not there'
rm -r "$root/sys/module/nvidia_uvm"
says 'nvidia_uvm is not loaded' 1 '^missing +nvidia_uvm.*load nvidia-uvm.ko of the driver'
! grep -q modprobe "$tmp/out"
judge 'nor modprobe, which is not there'
system
put "/lib/modules/$release/modules.dep" 'updates/dkms/nvidia-uvm.ko:'
says 'it is where it can be loaded' 1 "^missing +nvidia_uvm.*type 'modprobe nvidia_uvm'"
put /sys/module/nvidia_uvm/parameters/uvm_disable_hmm Y
says 'and the directory is named where it is' 1 '^missing +uvm_disable_hmm +set.*to /etc/modprobe.d/'
machine
rm -r "$root/proc/driver" "$root/sys/module/nvidia_uvm"
says 'no GPU: a note' 0 '^note +NVIDIA module +no NVIDIA GPU'
put /sys/bus/pci/devices/0000:01:00.0/vendor 0x10de
put /sys/bus/pci/devices/0000:01:00.0/class 0x030200
says 'a GPU without its driver' 1 '^missing +NVIDIA module +a GPU is there'
put /sys/bus/pci/devices/0000:01:00.0/class 0x020000
says 'a network card of the same vendor is none' 0 '^note +NVIDIA module'
rm -r "$root/sys/module/hetmem_emu"
says 'no GPU and no emulated device: nowhere to go' 1 '^note +hetmem_emu.ko +not loaded' \
	'^missing +memory moves +no'

machine
rm -r "$root/sys/module/hetmem" "$root/dev/hetmem"
says 'module not loaded' 1 '^missing +hetmem.ko +not loaded' '^missing +/dev/hetmem'
! grep -Eq 'insmod|modprobe|apt-get|headers' "$tmp/out"
judge 'nothing of the kernel is installed: no command that needs it'
mkdir -p "$root/lib/modules/$release"
put /usr/bin/apt-get ''
says 'without headers' 1 "^missing +hetmem.ko .*'apt-get install linux-headers-$release'"
system
says 'with headers, in the source' 1 "^missing +hetmem.ko .*'make module' and 'insmod build/hetmem.ko' as root"
cp "$hetmem" "$tmp/hetmem"
(cd "$tmp" && "$tmp/hetmem" doctor --verbose --require all --sysroot "$root") >"$tmp/out" 2>"$tmp/err" </dev/null
status=$?
[ $status -eq 1 ] && grep -Eq "^missing +hetmem.ko .*from hetmem's source" "$tmp/out" &&
	! grep -Eq "make demo|insmod" "$tmp/out"
judge 'outside of the source neither make demo nor a path below it'
(cd "$tmp" && "$top/build/hetmem" doctor --verbose --require all --sysroot "$root") >"$tmp/out" 2>"$tmp/err" </dev/null
status=$?
[ $status -eq 1 ] && grep -Fq "'make -C $top module' and 'insmod $top/build/hetmem.ko'" "$tmp/out"
judge 'the command of a source tree names it, from elsewhere'
put "/lib/modules/$release/modules.dep" 'updates/dkms/hetmem.ko.xz:'
says 'installed: modprobe' 1 "^missing +hetmem.ko .*type 'modprobe hetmem' as root"
put /proc/sys/kernel/modules_disabled 1
says 'no module can be loaded' 1 '^missing +hetmem.ko +not loaded' '^missing +module rules.*reboot'
! grep -Eq 'insmod|modprobe' "$tmp/out"
judge 'then no command for that'
put /proc/sys/kernel/modules_disabled 0
machine
rm -r "$root/sys/module/hetmem" "$root/dev/hetmem"
put /sys/kernel/security/lockdown 'none [integrity] confidentiality'
says 'lockdown' 1 "^missing +module rules.*lockdown is 'integrity'.*sign"
! grep -Eq 'mokutil|sign-file' "$tmp/out"
judge 'and neither mokutil nor sign-file, which are not there'
system
says 'where they are' 1 "^missing +module rules.*sign-file.*mokutil --import"
put /sys/kernel/security/lockdown '[none] integrity confidentiality'
put /sys/module/module/parameters/sig_enforce Y
mkdir -p "$root/sys/firmware/efi/efivars"
printf '\6\0\0\0\1' \
	>"$root/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
says 'enforced signatures, secure boot' 1 '^missing +module rules.*enforced.*secure boot on'
put /sys/module/module/parameters/sig_enforce N
put /proc/sys/kernel/modules_disabled 1
says 'modules disabled' 1 '^missing +module rules.*modules_disabled is set.*reboot'
put /proc/sys/kernel/modules_disabled 0
config MODULES=n
says 'a kernel without modules' 1 '^missing +module rules.*loads no modules'
machine
put /sys/kernel/security/lockdown 'none [integrity] confidentiality'
says 'lockdown with the module loaded: a note' 0 '^note +module rules.*integrity'

machine
rm "$root/dev/hetmem"
says 'no device node' 1 '^missing +/dev/hetmem +.*no device node; mount devtmpfs'
put /sys/class/misc/hetmem/dev 10:123
says 'with the command that makes it' 1 "^missing +/dev/hetmem .*type 'mknod -m 666 /dev/hetmem c 10 123'"
machine
system
chmod 600 "$root/dev/hetmem"
if [ "$(id -u)" -eq 0 ]; then
	says 'root may use any node' 0 '^ok +/dev/hetmem +usable \(mode 0600'
	cp "$hetmem" "$tmp/hetmem"
	setpriv --reuid 65534 --regid 65534 --clear-groups "$tmp/hetmem" doctor --verbose --require all \
		--sysroot "$root" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
else
	chmod 000 "$root/dev/hetmem"
	run doctor --verbose --require all --sysroot "$root"
fi
[ $status -eq 1 ] && grep -Eq \
	'^missing +/dev/hetmem +not for this user: mode 0.00, owner .*KERNEL=="hetmem", MODE="0666".*udevadm' \
	"$tmp/out"
judge 'permissions, and the udev rule to write'
rm -r "$root/etc/udev"
if [ "$(id -u)" -eq 0 ]; then
	setpriv --reuid 65534 --regid 65534 --clear-groups "$tmp/hetmem" doctor --verbose --require all \
		--sysroot "$root" >"$tmp/out" 2>"$tmp/err" </dev/null
	status=$?
else
	run doctor --verbose --require all --sysroot "$root"
fi
[ $status -eq 1 ] && grep -q "chmod 666 /dev/hetmem" "$tmp/out" && ! grep -q udev "$tmp/out"
judge 'without udev: chmod'

machine
put /proc/self/limits 'Max locked memory         8388608              8388608              bytes'
put /proc/swaps 'Filename Type Size Used Priority'
put /sys/kernel/mm/transparent_hugepage/enabled 'always madvise [never]'
rm -r "$root/sys/devices" "$root/sys/kernel/mm/hugepages"
says 'a limit that cannot be raised here, and no file for it' 0 "^note +RLIMIT_MEMLOCK .*as root after 'ulimit -l unlimited'"
! grep -q limits.conf "$tmp/out"
judge 'which is not named'
put /etc/security/limits.conf ''
says 'the file for it' 0 '^note +RLIMIT_MEMLOCK .*/etc/security/limits.conf'
put /proc/self/limits 'Max locked memory         8388608              unlimited            bytes'
says 'notes' 0 '^note +RLIMIT_MEMLOCK +8 MiB.*ulimit' '^note +swap +none' \
	'^note +huge pages .*never.*echo madvise' '^note +NUMA nodes' '^note +hugetlb pools +none'

# In short: what matters first, a line each, and no word is broken.
machine
config DEVICE_PRIVATE=n HMM_MIRROR=n
rm -r "$root/sys/module/hetmem" "$root/dev/hetmem"
put /proc/self/limits 'Max locked memory         8388608              8388608              bytes'
run doctor --verbose --sysroot "$root"
words() { tr -s ' ' '\n' | sed '/^$/d' | sed 's/;$//' | grep -vFx ... | LC_ALL=C sort -u; }
words <"$tmp/out" >"$tmp/words"
for columns in 80 100 200; do
	COLUMNS=$columns run doctor --sysroot "$root"
	sed '/^and [0-9]/,$d' "$tmp/out" >"$tmp/lines"
	[ "$status" -eq 0 ] && [ "$(wc -L <"$tmp/out")" -le $columns ] && [ ! -s "$tmp/err" ] &&
		[ "$(head -1 "$tmp/out")" = 'Works here:' ] && grep -q '^  ok *PyTorch ' "$tmp/lines" &&
		[ "$(grep -c '^  missing ' "$tmp/lines")" -eq 5 ] && ! grep -Eq 'page size|hugetlb|swap' "$tmp/out" &&
		grep -Eq "^and 1[0-9] more are as expected; 'hetmem doctor --verbose' lists all$" "$tmp/out"
	judge "$columns columns: what works, what is missing, and the rest in one line"
	grep -E '^  (missing|note)' "$tmp/lines" | words | LC_ALL=C comm -23 - "$tmp/words" >"$tmp/broken"
	[ ! -s "$tmp/broken" ]
	judge "$columns columns: no word is broken"
done
[ "$(sed -n '/^Missing, for programs whose malloc/,/^$/p' "$tmp/out" | grep -c '^  missing *\(CONFIG_\|memory moves\)')" -eq 3 ] &&
	[ "$(sed -n '/^Missing, for hints/,/^$/p' "$tmp/out" | grep -c '^  missing *\(hetmem.ko\|/dev/hetmem\)')" -eq 2 ] &&
	[ "$(grep -c '^Missing, for' "$tmp/out")" -eq 2 ]
judge 'what is missing is below those whom it concerns, once'
[ "$(grep -c 'boot a kernel with' "$tmp/out")" -eq 1 ] && sed -n '/^What to do:$/,$p' "$tmp/out" | grep -q '^  - '
judge 'advice, each once'
LC_ALL=C NO_COLOR=1 run doctor --sysroot "$root"
[ "$status" -eq 0 ] && ! LC_ALL=C grep -q '[^[:print:]]' "$tmp/out"
judge 'LC_ALL=C, NO_COLOR: plain ASCII'
if command -v script >/dev/null; then
	TERM=xterm script -qec "stty cols 100; '$hetmem' doctor --verbose --sysroot '$root'" /dev/null </dev/null 2>/dev/null |
		tr -d '\r' >"$tmp/out"
	words <"$tmp/out" | LC_ALL=C comm -23 - "$tmp/words" >"$tmp/broken"
	[ "$(wc -l <"$tmp/out")" -gt 15 ] && [ "$(wc -L <"$tmp/out")" -le 110 ] && [ ! -s "$tmp/broken" ]
	judge 'a terminal of 100 columns: --verbose wraps between words'
fi
machine
run doctor --sysroot "$root"
[ "$status" -eq 0 ] && [ "$(grep -c '^  ok ' "$tmp/out")" -eq 10 ] &&
	! grep -Eq 'What to do|Missing|Does not work' "$tmp/out"
judge 'nothing missing: all uses, and nothing to do'

# Scripts ask for uses; only these make the status 1.
# asks NAME STATUS WORDS PATTERN: with --require WORDS; stderr matches PATTERN.
asks()
{
	run doctor --require "$3" --sysroot "$root"
	complains "$2" && grep -Eq "$4" "$tmp/err" && grep -q '^Works here:$' "$tmp/out"
	judge "$1"
}

every=pools,device,pytorch,cupy,managed,sleep,unified,hmm,moves,module
run doctor --require $every,all --sysroot "$root"
complains 0
judge 'a machine that has all: every word, and all'
config DEVICE_PRIVATE=n
asks 'no HMM' 1 hmm '^hetmem doctor: required, and does not work: hmm: .*HMM$'
asks 'one of several' 1 pools,module,hmm ' hmm: '
run doctor --require pytorch,cupy,managed,sleep,device --sysroot "$root"
complains 0
judge 'PyTorch, CuPy, managed memory and sleep need no HMM'
run doctor --require pytorch --require moves --require unified --sysroot "$root"
[ "$status" -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 2 ] && grep -q ' moves: ' "$tmp/err" && grep -q ' unified: ' "$tmp/err"
judge '--require several times: a line for each that does not work'
rm -r "$root/sys/module/hetmem"
asks 'no module' 1 module ' module: hetmem.ko is not loaded$'
rm -r "$root/sys/module/nvidia_uvm"
asks 'no nvidia_uvm' 1 managed ' managed: nvidia_uvm is not loaded$'
asks 'the driver is there' 1 device,pytorch ' pytorch: nvidia_uvm is not loaded$'
rm -r "$root/proc/driver"
asks 'no GPU' 1 device ' device: no NVIDIA GPU here$'
run doctor --require pools --sysroot "$root"
complains 0 && grep -q '^  ok *pools *of host memory' "$tmp/out" &&
	[ "$(grep -c 'device memory, PyTorch, CuPy, managed memory, sleep, unified' "$tmp/out")" -eq 1 ]
judge 'no GPU: pools of host memory work; uses with one reason are one line'
for word in hmmm HMM '' 'hmm,' ',hmm' 'hmm pools' al allx; do
	wrong "--require '$word'" "'[^']*' is not one of pools, device, pytorch, .*module, all" doctor --require "$word"
done
wrong 'control characters of a word are escaped' "'h.x1b.31m' is not one of" doctor --require $'h\e[31m'
run doctor --require hmm,pools --json --sysroot "$root"
complains 1
judge '--require with --json: the object, and the line'
cp "$tmp/out" "$tmp/json"
cat >"$tmp/check.pl" <<'EOP'
use JSON::PP;
local $/;
my $doctor = decode_json(<>);
my %use = map { $_->{use} => $_ } @{$doctor->{uses}};
die unless @{$doctor->{uses}} == 10 && $doctor->{uses}[0]{use} eq 'pools';
die unless $use{pools}{works} && $use{pools}{required} && !$use{hmm}{works} && $use{hmm}{required};
die unless !$use{sleep}{required} && $use{hmm}{name} eq 'HMM' && $use{hmm}{why};
my %check = map { $_->{name} => $_ } @{$doctor->{checks}};
die unless $check{CONFIG_DEVICE_PRIVATE}{matters_for} =~ /malloc/ && !defined $check{kernel}{matters_for};
EOP
check '--json: the uses, and for whom it matters' perl "$tmp/check.pl" "$tmp/json"

# What is in the files of others does not reach the terminal.
machine
put /sys/module/hetmem/version $'1\e[2J'
put /sys/devices/system/node/node0/distance $'10\e[31m'
says 'control characters are escaped' 0 'version 1\\x1b\[2J' '10\\x1b\[31m'
! grep -q $'\e' "$tmp/out"
judge 'all of them'
root=$tmp/empty
mkdir "$root"
says 'an empty tree: no crash' 1 '^missing +hetmem.ko' '^missing +memory moves'
machine
for file in proc/self/limits proc/swaps proc/driver/nvidia/version dev/hetmem \
	    sys/kernel/security/lockdown proc/sys/kernel/osrelease; do
	rm -f "$root/$file"
	mkdir "$root/$file"
done
head -c 300000 /dev/urandom >"$root/proc/config.gz"
run doctor --verbose --sysroot "$root"
[ "$status" -eq 0 ] && [ "$(wc -l <"$tmp/out")" -ge 12 ]
judge 'directories and rubbish in the place of files: no crash'

# Machines that the soft driver plays: the verdict, the evidence, what contradicts.
export HETMEM_DRIVER=soft

# plays NAME DESCRIPTION PATTERN...: a line that matches each.
plays()
{
	local name=$1 pattern good=0

	export HETMEM_SOFT_MACHINE=$2
	shift 2
	run doctor --verbose
	[ "$status" -eq 0 ] && [ ! -s "$tmp/err" ] || good=1
	for pattern; do
		grep -Eq -- "$pattern" "$tmp/out" || good=1
	done
	[ $good -eq 0 ]
	judge "$name"
}

plays 'a device without shared memory' none '^missing +device 0 .*platform none: it shares no memory' \
	'^missing +memory moves +no'
plays 'managed memory only' managed '^missing +device 0 .*platform managed: .*concurrent managed access' \
	'^note +device 0: driver +integrated no, pageable no, host_tables no, managed yes, concurrent yes,'
plays 'HMM' 'hmm memory=32M' '^ok +device 0 .*32 MiB; platform HMM: ' '^note +device 0: nvml +library yes, addressing HMM' \
	'^ok +memory moves +device 0 by cuMemPrefetchAsync'
plays 'ATS' 'ats node=0 host_node=0' '^ok +device 0 .*platform ATS \(node 0\): .*nearest node 0' \
	'^note +device 0: driver .*node 0, host_node 0' '^note +device 0: kernel +node_online yes, node_memory .*node_cpus no' \
	'^note +device 0: module +loaded no, device none'
plays 'CDMM' cdmm '^ok +device 0 .*platform CDMM: ' '^missing +memory moves +no: .*device 0: CDMM'
plays 'integrated' integrated '^ok +device 0 .*platform integrated: it and the CPU have one memory'
! grep -q contradiction "$tmp/out"
judge 'nothing contradicts'
plays 'one memory for device and CPU' 'integrated memory=2G' '^ok +use: sleep +to a file and back, with park=PATH; the device and the CPU have one memory' \
	'^note +device 0 +one memory: no spill='
plays 'several kinds, and two contradictions' 'hmm nvml.addressing=none; ats node=900' \
	'^ok +device 0 .*HMM' '^note +device 0: contradiction +NVML says: addressing mode none; ' \
	'^ok +device 1 .*CDMM' '^note +device 1: contradiction +its memory is said to be node 900, which the kernel does not have'
[ "$(grep -c contradiction "$tmp/out")" -eq 2 ]
judge 'no more than two'
run doctor --json
cp "$tmp/out" "$tmp/json"
cat >"$tmp/check.pl" <<'EOP'
use JSON::PP;
local $/;
my $devices = decode_json(<>)->{devices};
die unless @$devices == 2 && $devices->[1]{device} == 1 && $devices->[0]{platform} eq 'HMM';
my %value = map { ("$_->{source}.$_->{what}" => $_->{value}) } @{$devices->[1]{evidence}};
die unless $value{'driver.node'} eq '900' && $value{'kernel.node_online'} eq 'no';
die unless $value{'nvml.addressing'} eq 'ATS' && keys %value == 19;
die unless @{$devices->[0]{contradictions}} == 1 && $devices->[1]{contradictions}[0] =~ /node 900/;
EOP
check '--json: verdicts, evidence, contradictions' perl "$tmp/check.pl" "$tmp/json"
plays 'a description that is wrong' 'gh200' '^missing +memory moves +no: .*HETMEM_SOFT_MACHINE, line 1: "gh200": use none'
HETMEM_NVTX=1 NVTX_INJECTION64_PATH=/nonexistent plays 'NVTX without a profiler' none \
	'^note +NVTX +no ranges: the library in NVTX_INJECTION64_PATH cannot be loaded'
HETMEM_NVTX=yes plays 'NVTX by another word' none '^note +NVTX +no ranges: HETMEM_NVTX is not 1'
unset HETMEM_DRIVER HETMEM_SOFT_MACHINE

check 'the example of an error names no group' sh -c "! strings '$hetmem' build/libhetmem.so* | grep 'join its group'"

run doctor
[ "$status" -eq 0 ] && head -1 "$tmp/out" | grep -Eq '^(Works here:|Nothing works here.)$' && [ ! -s "$tmp/err" ]
judge 'this machine: what works comes first, and status 0'
HETMEM_DRIVER=soft run doctor --require pools,device,pytorch,cupy,managed,sleep
complains 0
judge 'the soft driver plays a device for all frameworks'
HETMEM_DRIVER=soft HETMEM_SOFT_MACHINE=hmm run doctor --require hmm,unified,moves
complains 0
judge 'and HMM'
HETMEM_DRIVER=soft HETMEM_SOFT_MACHINE=cdmm run doctor --require unified,hmm
complains 1 && grep -q ' hmm: ' "$tmp/err"
judge 'on CDMM no HMM'
done_testing
