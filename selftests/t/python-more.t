#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# The Python package with every Python of this machine, and with the frameworks that python.t
# leaves out.
. "$(dirname "$0")/python.sh"

the_wheel
mapfile -t found < <(candidates)
also 'there is a Python' test ${#found[@]} -gt 0
for candidate in "${found[@]}"; do
	with_wheel "$candidate"
	releases=$(numpy_for "$version")
	# python.t has the first, with the newest NumPy.
	if [ "$candidate" = "${found[0]}" ]; then
		newest=${releases##* }
		case $releases in *' '*) releases=${releases% *} ;; *) releases='' ;; esac
	else
		programs "$version" abi core trace cupy
	fi
	for release in $releases; do
		if dir=$(pypi numpy "numpy==$release"); then
			PYTHONPATH=$dir programs "$version, NumPy $release" numpy
		else
			skip "$version, NumPy $release" 'PyPI has no answer'
		fi
	done
done

version=$("${found[0]}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
python=$tmp/$version/bin/python
if dir=$(pypi numpy "numpy==$newest"); then
	PYTHONPATH=$dir programs "$version, NumPy $newest" array_programs
else
	skip "$version, NumPy $newest" 'PyPI has no answer'
fi
if dir=$(pypi matplotlib matplotlib==3.10.9 numpy==2.3.5); then
	PYTHONPATH=$dir program 'pictures by matplotlib' limited 300 "$python" "$tests/test_plot.py"
else
	skip 'pictures by matplotlib' 'PyPI has no answer'
fi

# The rest of full mode, and unified tensors: PyTorch itself, over the soft driver.
if dir=$(pypi_torch); then
	check 'stand-ins for NVIDIA'"'"'s libraries' "$tests/stand-ins" "$dir" "$tmp/stand-ins"
	TORCH_SITE=$dir STAND_INS=$tmp/stand-ins program 'PyTorch: full' \
		limited 1200 "$python" "$tests/test_torch_full.py" "${full_first[@]/#/-}"
	for name in unified programs sparse pin; do
		TORCH_SITE=$dir STAND_INS=$tmp/stand-ins program "PyTorch: $name" \
			limited 1200 "$python" "$tests/test_torch_$name.py"
	done

	if transformers=$(pypi transformers transformers==5.24.0 numpy==2.3.5); then
		TRANSFORMERS_SITE=$transformers TORCH_SITE=$dir STAND_INS=$tmp/stand-ins \
			program 'PyTorch: KVCache' limited 1200 "$python" "$tests/test_torch_cache.py"
	else
		skip 'KVCache' 'PyPI has no answer'
	fi

	if saver=$(pypi saver --no-deps torch_memory_saver==0.0.10); then
		SAVER_SITE=$saver TORCH_SITE=$dir STAND_INS=$tmp/stand-ins \
			program 'PyTorch: compat' limited 1200 "$python" "$tests/test_torch_compat.py"
	else
		skip 'compat' 'PyPI has no answer'
	fi

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

if dir=$(pypi auditwheel auditwheel==6.8.2); then
	check 'auditwheel' env PYTHONPATH="$dir" "$python" -m auditwheel show "$wheel"
	tag=${wheel%.whl}
	also 'agrees with the tag' sh -c "tr '\n' ' ' <'$tmp/out' | grep -q 'tag: \"${tag##*-}\"'"
else
	skip 'auditwheel' 'PyPI has no answer'
fi
done_testing
