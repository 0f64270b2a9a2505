# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# shellcheck shell=bash
#
# The tests of the Python package share this: packages of PyPI, which are cached, and the wheel
# for a Python. A test whose package PyPI does not have is skipped.
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
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
		# time: PyPI can be slow, and is then left out
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

# pypi_torch: PyTorch itself, and what its CUDA version needs to be imported: 530 MB.
pypi_torch()
{
	pypi torch --no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 \
		typing-extensions filelock sympy mpmath networkx jinja2 markupsafe fsspec numpy
}

# Tests of full mode that python.t runs; python-more.t has the others.
# shellcheck disable=SC2034
full_first=(test_tensors test_out_of_memory test_driver_fails test_statistics test_snapshot test_spill
	test_record_stream test_graphs test_mem_pool test_threads test_fork)

# skip NAME REASON
skip() { pass "$1 # skip $2"; }

# the_wheel: makes it; sets $wheel.
the_wheel()
{
	local wheels

	check 'make wheel' make wheel TORCH_VERSIONS=
	wheels=(build/wheel/*.whl)
	wheel=$top/${wheels[0]}
	also 'makes one' test ${#wheels[@]} -eq 1
	check 'a virtual environment' python3 -m venv "$tmp/pip"
}

# candidates: a Python of each version from 3.9 on, one a line, the first to be found first.
candidates()
{
	local candidate version versions=' '

	for candidate in python3 python3.9 python3.{10..14} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
		version=$("$candidate" -c 'import ctypes, sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
			continue
		case $versions in *" $version "*) continue ;; esac
		"$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 9))' || continue
		versions+="$version "
		echo "$candidate"
	done
}

# with_wheel PYTHON: an environment of it that has the wheel; sets $python and $version. A wheel
# is a zip file.
with_wheel()
{
	version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	python=$tmp/$version/bin/python
	check "Python $version" sh -c "
		'$1' -m venv --without-pip '$tmp/$version' &&
		cd '$tmp/$version/lib/python$version/site-packages' &&
		'$1' -m zipfile -e '$wheel' . && chmod 755 hetmem/lib/hetmem"
}

# programs WHAT NAME...: tests of selftests/python, as the environment says.
programs()
{
	local what=$1 name

	shift
	for name; do
		program "$what: $name" limited 300 "$python" "$tests/test_$name.py"
	done
}

# Both places of NumPy's C API, and the first release that has handlers: the last is the newest.
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
