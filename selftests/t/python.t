#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The Python package: the wheel, what it does over the soft driver with one Python, NumPy and
# PyTorch, and static checkers. python-more.t has the other Pythons and frameworks.
. "$(dirname "$0")/python.sh"

the_wheel
also 'for every Python 3 of a Linux with that libc' sh -c \
	"basename '$wheel' | grep -qxE 'hetmem-[0-9.]+-py3-none-manylinux_2_[0-9]+_[a-z0-9_]+\.whl'"
check 'the same again' sh -c "cp '$wheel' '$tmp/first.whl' && rm '$wheel' && make wheel TORCH_VERSIONS= && cmp '$wheel' '$tmp/first.whl'"

# Into a fresh environment, where there is no compiler and no index.
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

with_wheel "$(candidates | head -n 1)"
programs "$version" abi core keep trace cupy torch

release=$(numpy_for "$version") release=${release##* }
if dir=$(pypi numpy "numpy==$release"); then
	PYTHONPATH=$dir programs "$version, NumPy $release" numpy residency unify doc
else
	skip "$version, NumPy $release" 'PyPI has no answer'
fi

# Full mode: PyTorch itself, over the soft driver.
if dir=$(pypi_torch); then
	check 'stand-ins for NVIDIA'"'"'s libraries' "$tests/stand-ins" "$dir" "$tmp/stand-ins"
	TORCH_SITE=$dir STAND_INS=$tmp/stand-ins program 'PyTorch: full' \
		limited 1200 "$python" "$tests/test_torch_full.py" "${full_first[@]}"
else
	skip 'PyTorch itself' "PyPI has no answer, or no PyTorch for this Python"
fi

if dir=$(pypi lint ruff==0.17.6 mypy==2.4.1 numpy); then
	export MYPYPATH=tools/python:Documentation/man
	check 'ruff' "$dir/bin/ruff" check --no-cache --config tools/python/pyproject.toml tools/python Documentation/man
	check 'ruff format' "$dir/bin/ruff" format --no-cache --check tools/python Documentation/man
	check 'mypy --strict' env PYTHONPATH="$dir" "$python" -m mypy --config-file tools/python/pyproject.toml \
		--cache-dir "$tmp/mypy" --strict tools/python/hetmem tools/python/hetmem_autoload.py tools/python/backend.py Documentation/man/*.py
	unset MYPYPATH
else
	skip 'ruff and mypy' 'PyPI has no answer'
fi
done_testing
