# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Resources of hetmem in RMM's CallbackMemoryResource, with RMM itself over the soft driver.
RMM_SITE is the folder of RMM."""

import os
import sys
import textwrap

import framework
import tap
import test_doc

PROLOGUE = f"""
import sys
sys.path.append({os.environ["RMM_SITE"]!r})
{tap.FAILS}"""


class Rmm(tap.Case):
    def test_documentation(self):
        found = [block for page in test_doc.PAGES for block in test_doc.python(page, test_doc.RMM)]
        self.assertEqual(len(found), 1)
        for code, expected in found:
            result = framework.run([sys.executable, "-c", PROLOGUE + code])
            self.assertEqual((result.stderr, result.returncode), ("", 0))
            self.assertEqual(result.stdout, expected)

    def test_streams_and_errors(self):
        self.silent(PROLOGUE + textwrap.dedent("""
            import hetmem, rmm
            from rmm.pylibrmm.stream import LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM
            pool = hetmem.resource("stats(pool(vmm,max=64M))")
            memory = rmm.mr.CallbackMemoryResource(pool.allocate, pool.deallocate)
            for stream in (LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM):
                address = memory.allocate(1000, stream)
                assert address % 256 == 0 and pool.stats().live == 1
                memory.deallocate(address, 1000, stream)
                assert pool.stats().live == 0
            fails(MemoryError, lambda: memory.allocate(1 << 40), "1099511627776 bytes")
            assert pool.stats().live == 0
            """))


if __name__ == "__main__":
    tap.main()
