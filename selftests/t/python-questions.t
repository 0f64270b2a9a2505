#!/bin/bash
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# What questions.md has of other programs, with PyTorch, CuPy, Dask and Ray: 100 MB more than
# python-more.t.
. "$(dirname "$0")/python.sh"

the_wheel
mapfile -t found < <(candidates)
also 'there is a Python' test ${#found[@]} -gt 0
with_wheel "${found[0]}"
if torch=$(pypi_torch) && cupy=$(pypi cupy --no-deps cupy-cuda12x==14.2.0 cuda-pathfinder numpy==2.3.5) &&
	dask=$(pypi dask dask==2026.8.0 distributed==2026.8.0 numpy==2.3.5) && ray=$(pypi ray ray==2.60.0); then
	check 'stand-ins for NVIDIA'"'"'s libraries' "$tests/stand-ins" "$torch" "$tmp/stand-ins"
	TORCH_SITE=$torch STAND_INS=$tmp/stand-ins CUPY_SITE=$cupy DASK_SITE=$dask RAY_SITE=$ray \
		program 'questions.md' limited 900 "$python" "$tests/test_questions.py"
else
	skip 'questions.md' 'PyPI has no answer'
fi
done_testing
