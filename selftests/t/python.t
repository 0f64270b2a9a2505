#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The Python package: the wheel, what it does over the soft driver with every Python of this
# machine, and static checkers. What comes from PyPI is cached; without it, what needs it is
# skipped.
. "$(dirname "$0")/tap.sh"
. selftests/vm/lib.sh

export HETMEM_DRIVER=soft PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_NO_CACHE_DIR=1
unset HETMEM_RESOURCE HETMEM_LIBRARY PYTHONPATH
tests=selftests/python
cache=$CACHE/python

# Debian has venv in a package of its own.
python3 -c 'import ensurepip, venv' 2>/dev/null || need /nonexistent:python3-venv
need gcc:gcc g++:g++ readelf:binutils

# pypi NAME REQUIREMENT...: a folder with these packages for $python. Fails if PyPI has no
# answer or is slow: it is not asked again after a failure, and all calls together wait for
# it for ten minutes at most. The rest of that is in a file, as calls are in subshells.
echo 600 >"$tmp/pypi"
pypi()
{
	local name=$1 key dir left since=$SECONDS

	shift
	key=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$(echo "$*" | tr ' ' '+')
	dir=$cache/$name-$key
	if [ ! -e "$dir/complete" ]; then
		left=$(cat "$tmp/pypi")
		[ "$left" -gt 0 ] || return 1
		rm -rf "$dir" && mkdir -p "$dir"
		if ! timeout -k 5 "$left" "$tmp/pip/bin/pip" -q --python "$python" --retries 1 --timeout 30 install \
			--only-binary :all: --target "$dir" "$@" >&2; then
			echo 0 >"$tmp/pypi"
			rm -rf "$dir"
			return 1
		fi
		echo $((left - SECONDS + since)) >"$tmp/pypi"
		touch "$dir/complete"
	fi
	echo "$dir"
}

# skip NAME REASON
skip() { pass "$1 # skip $2"; }

check 'make wheel' make wheel TORCH_VERSIONS=
wheels=(build/wheel/*.whl)
wheel=$top/${wheels[0]}
also 'makes one' test ${#wheels[@]} -eq 1
also 'for every Python 3 of a Linux with that libc' sh -c \
	"basename '$wheel' | grep -qxE 'hetmem-[0-9.]+-py3-none-manylinux_2_[0-9]+_[a-z0-9_]+\.whl'"
check 'the same again' sh -c "cp '$wheel' '$tmp/first.whl' && rm '$wheel' && make wheel TORCH_VERSIONS= && cmp '$wheel' '$tmp/first.whl'"

# Into a fresh environment, where there is no compiler and no index.
check 'a virtual environment' python3 -m venv "$tmp/pip"
check 'the wheel is installed' env PATH="$tmp/pip/bin" pip install --no-index "$wheel"
package=$(echo "$tmp"/pip/lib/python3*/site-packages/hetmem)
python=$tmp/pip/bin/python
also 'typed' test -e "$package/py.typed"
empty 'without what is not part of it' find "$package" -type f ! -name '*.py' ! -path '*/lib/*' \
	! -path '*/torch_full/*' ! -name py.typed
foreign()
{
	readelf -d "$package"/lib/* | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u |
	while read -r name; do
		case $name in
		libc.so.6|libm.so.6|libstdc++.so.6|libgcc_s.so.1|ld-linux-*) ;;
		*) [ -e "$package/lib/$name" ] || echo "$name" ;;
		esac
	done
}
empty 'it has the libraries that it needs' foreign
empty 'none under a name of the system' sh -c "ls '$package/lib' | grep -vE '^(libhetmem.*|hetmem|hm_.*)\$'"
also 'with their licences' sh -c "ls '$package'/../hetmem-*.dist-info/licenses | grep -q numa"
check 'it loads its own' "$python" -c '
import hetmem
hetmem.resource("pool(host)")
maps = open("/proc/self/maps").read()
assert "hetmem/lib/hm_numa.so" in maps and "/libnuma.so" not in maps, maps'
check 'python -m hetmem is the command' sh -c "
	cd / && '$python' -m hetmem spec --list >'$tmp/a' && '$top/build/hetmem' spec --list >'$tmp/b' &&
	cmp '$tmp/a' '$tmp/b'"
doctor() { "$@" doctor 2>&1 | sed 's/[0-9.]* [KMG]iB//g'; echo "${PIPESTATUS[0]}"; }
also 'doctor too' diff <(doctor "$python" -m hetmem) <(doctor build/hetmem)
also 'and so is hetmem' diff <(doctor "$tmp/pip/bin/hetmem") <(doctor build/hetmem)
exits 2 'with its exit status' "$python" -m hetmem nonsense
check 'pip install ./tools/python' sh -c "
	python3 -m venv '$tmp/source' && '$tmp/source/bin/pip' install --no-index ./tools/python &&
	'$tmp/source/bin/python' -c 'import hetmem; hetmem.resource(\"device-pool\").alloc(1).free()'"
check 'pip install --editable' sh -c "
	'$tmp/source/bin/pip' uninstall -y hetmem && '$tmp/source/bin/pip' install --no-index -e ./tools/python &&
	'$tmp/source/bin/python' -c 'import hetmem; assert hetmem.__file__.startswith(\"$top\")
hetmem.resource(\"device-pool\").alloc(1).free()'"

# A library of another version: one that lacks a function, one whose text is not a library's.
echo 'int hetmem_open;' | gcc -shared -x c -o "$tmp/old.so" -
exits 1 'a library that is older is refused' env HETMEM_LIBRARY="$tmp/old.so" "$python" -c '
import hetmem
hetmem.resource("pool(host)")'
also 'with what to do' grep -q 'older than the Python package; install a library' "$tmp/err"

# The tests, with each Python from 3.9 on; the first has all of them. A wheel is a zip file.
pythons=()
versions=' '
for candidate in python3 python3.9 python3.{10..14} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
	version=$("$candidate" -c 'import ctypes, sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
		continue
	case $versions in *" $version "*) continue ;; esac
	"$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || continue
	versions+="$version "
	python=$tmp/$version/bin/python
	check "Python $version" sh -c "
		'$candidate' -m venv --without-pip '$tmp/$version' &&
		cd '$tmp/$version/lib/python$version/site-packages' &&
		'$candidate' -m zipfile -e '$wheel' . && chmod 755 hetmem/lib/hetmem"
	names='abi core trace cupy'
	[ ${#pythons[@]} -gt 0 ] || names+=' torch'
	pythons+=("$python")
	for name in $names; do
		program "$version: $name" limited 300 "$python" "$tests/test_$name.py"
	done
done
also 'there is one at least' test ${#pythons[@]} -gt 0

# Both places of its C API, and the first release that has handlers.
numpy_for()
{
	case $1 in
	3.9) echo 2.0.2 ;;
	3.10) echo 1.22.4 ;;
	3.11) echo 1.26.4 2.3.5 ;;
	3.12) echo 2.0.2 ;;
	*) echo 2.3.5 ;;
	esac
}

for python in "${pythons[@]}"; do
	version=${python%/bin/python} version=${version##*/}
	releases=$(numpy_for "$version")
	for release in $releases; do
		if dir=$(pypi numpy "numpy==$release"); then
			names=numpy
			[ "$python $release" != "${pythons[0]} ${releases##* }" ] ||
				names+=' residency unify doc array_programs'
			for name in $names; do
				PYTHONPATH=$dir program "$version, NumPy $release: $name" \
					limited 300 "$python" "$tests/test_$name.py"
			done
		else
			skip "$version, NumPy $release" 'PyPI has no answer'
		fi
	done
done

python=${pythons[0]}
if dir=$(pypi matplotlib matplotlib==3.10.9 numpy==2.3.5); then
	PYTHONPATH=$dir program 'pictures by matplotlib' limited 300 "$python" "$tests/test_plot.py"
else
	skip 'pictures by matplotlib' 'PyPI has no answer'
fi

# Full mode and unified tensors: PyTorch itself, over the soft driver. Its wheel is 530 MB.
python=${pythons[0]}
if dir=$(pypi torch --no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 \
	typing-extensions filelock sympy mpmath networkx jinja2 markupsafe fsspec numpy); then
	check 'stand-ins for NVIDIA'"'"'s libraries' "$tests/stand-ins" "$dir" "$tmp/stand-ins"
	for name in full unified programs; do
		TORCH_SITE=$dir STAND_INS=$tmp/stand-ins program "PyTorch: $name" \
			limited 1200 "$python" "$tests/test_torch_$name.py"
	done

	# A wheel with a companion, compiled with the headers of this PyTorch.
	cached=$tmp/cache/hetmem/torch-2.11.0
	mkdir -p "$cached/lib"
	ln -s "$dir/torch" "$dir/nvidia" "$cached/"
	for name in torch_cuda c10_cuda c10; do
		gcc -shared -x c /dev/null "-Wl,-soname,lib$name.so" -o "$cached/lib/lib$name.so"
	done
	touch "$cached/fetched"
	rm -f build/python/libhetmem-torch-2.11.so
	check 'make wheel with a companion' env XDG_CACHE_HOME="$tmp/cache" make wheel TORCH_VERSIONS=2.11.0
	check 'the wheel' sh -c "mkdir '$tmp/companion' && python3 -m zipfile -e '$wheel' '$tmp/companion'"
	also 'has it' test -s "$tmp/companion/hetmem/lib/libhetmem-torch-2.11.so"
	also 'no other' test "$(find "$tmp/companion" -name 'libhetmem-torch-*' | wc -l)" -eq 1
	WHEEL=$tmp/companion TORCH_SITE=$dir STAND_INS=$tmp/stand-ins program 'companions' \
		limited 600 "$python" "$tests/test_torch_wheel.py"
	# In this tree hetmem.torch would take it.
	rm -f build/python/libhetmem-torch-2.11.so
	check 'make wheel without one' make wheel TORCH_VERSIONS=
	check 'its list' python3 -m zipfile -l "$wheel"
	also 'has none' sh -c "grep -q libhetmem-torch.so '$tmp/out' && ! grep -q libhetmem-torch-2 '$tmp/out'"
else
	skip 'PyTorch itself' "PyPI has no answer, or no PyTorch for this Python"
fi

# CuPy itself, over the soft driver. Its wheel is 137 MB.
if dir=$(pypi cupy --no-deps cupy-cuda12x==14.2.0 cuda-pathfinder numpy==2.3.5); then
	CUPY_SITE=$dir program 'asarray, with CuPy' limited 600 "$python" "$tests/test_asarray.py"
else
	skip 'asarray, with CuPy' "PyPI has no answer, or no CuPy for this Python"
fi

if dir=$(pypi numba --no-deps numba==0.68.1 llvmlite==0.50.0 numpy==2.3.5); then
	check 'libcuda.so.1 for Numba' gcc -shared -fPIC -Wall -Wextra -Werror -o "$tmp/libcuda.so.1" "$tests/libcuda.c"
	NUMBA_SITE=$dir LIBCUDA=$tmp/libcuda.so.1 program 'Numba' limited 300 "$python" "$tests/test_numba.py"
else
	skip 'Numba' "PyPI has no answer, or no Numba for this Python"
fi
if dir=$(pypi rmm --no-deps rmm-cu12==26.10.0 librmm-cu12==26.10.0 rapids-logger==0.3.0 \
	cuda-bindings==12.9.10 cuda-pathfinder numpy==2.3.5); then
	RMM_SITE=$dir program 'RMM' limited 120 "$python" "$tests/test_rmm.py"
else
	skip 'RMM' "PyPI has no answer, or no RMM for this Python"
fi

if dir=$(pypi lint ruff==0.17.6 mypy==2.4.1 numpy); then
	export MYPYPATH=tools/python:Documentation/man
	check 'ruff' "$dir/bin/ruff" check --no-cache --config tools/python/pyproject.toml tools/python Documentation/man
	check 'ruff format' "$dir/bin/ruff" format --no-cache --check tools/python Documentation/man
	check 'mypy --strict' env PYTHONPATH="$dir" "$python" -m mypy --config-file tools/python/pyproject.toml \
		--cache-dir "$tmp/mypy" --strict tools/python/hetmem tools/python/backend.py Documentation/man/*.py
	unset MYPYPATH
else
	skip 'ruff and mypy' 'PyPI has no answer'
fi
if dir=$(pypi auditwheel auditwheel==6.8.2); then
	check 'auditwheel' env PYTHONPATH="$dir" "$python" -m auditwheel show "$wheel"
	tag=${wheel%.whl}
	also 'agrees with the tag' sh -c "tr '\n' ' ' <'$tmp/out' | grep -q 'tag: \"${tag##*-}\"'"
else
	skip 'auditwheel' 'PyPI has no answer'
fi
done_testing
