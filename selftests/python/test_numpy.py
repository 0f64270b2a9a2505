# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""hetmem.numpy: arrays on hetmem, with every version of NumPy that is given."""

import concurrent.futures
import contextvars
import errno
import gc
import os
import threading
import warnings

import hetmem
import hetmem.numpy
import numpy as np
import tap

MIB = 1 << 20


class Numpy(tap.Case):
    def setUp(self):
        self.pool = hetmem.resource("pool(host)")

    def live(self):
        gc.collect()
        return self.pool.stats().live

    def test_sizes(self):
        with hetmem.numpy.using(self.pool, least=4096) as pool:
            self.assertIs(pool, self.pool)
            small = np.empty(4095, np.uint8)
            self.assertEqual(self.live(), 0)
            for make in (np.empty, np.zeros, np.ones):
                array = make(1024, np.float32)
                self.assertEqual(self.live(), 1, make)
                self.assertEqual(array.ctypes.data % 512, 0)
            zeros = np.zeros((3, MIB))
            self.assertFalse(zeros.any())
            self.assertEqual(self.live(), 2)
            del zeros, array
            self.assertEqual(self.live(), 0)
            self.assertEqual(small.size, 4095)
            np.empty(0)
            np.empty((0, 5000))

    def test_results_are_equal(self):
        def program():
            rng = np.random.default_rng(1)
            a = rng.random((300, 300))
            b = np.sort((a @ a.T + np.fft.fft2(a).real).ravel())
            c = np.concatenate([b, b[::3]]).reshape(-1, 2)
            d = np.lib.stride_tricks.sliding_window_view(b, 9).mean(axis=1)
            return a.sum(0), b, c.cumsum(), d, np.unique(np.round(a, 2)), a[a > 0.5]

        plain = program()
        with hetmem.numpy.using(self.pool, least=1):
            mine = program()
        for one, other in zip(plain, mine):
            np.testing.assert_array_equal(one, other)
        self.assertGreater(self.live(), 0)
        del mine, other
        self.assertEqual(self.live(), 0)

    def test_memory_is_used_again_zeroed(self):
        with hetmem.numpy.using(self.pool, least=1):
            for _ in range(5):
                np.full(MIB, 255, np.uint8)
                self.assertFalse(np.zeros(MIB, np.uint8).any())

    def test_views_keep_memory(self):
        with hetmem.numpy.using(self.pool):
            array = np.arange(MIB, dtype=np.int64)
        part = array[10:20].reshape(2, 5).T
        view = memoryview(part)
        del array, part
        self.assertEqual(self.live(), 1)
        self.assertEqual(view[4, 1], 19)
        del view
        self.assertEqual(self.live(), 0)

    def test_arrays_outlive_the_switch_off(self):
        hetmem.numpy.enable(self.pool)
        array = np.ones(MIB)
        hetmem.numpy.disable()
        self.assertEqual(self.live(), 1)
        later = np.ones(MIB)
        self.assertEqual(self.live(), 1)
        # The array resizes itself by its own handler.
        array.resize(3 * MIB, refcheck=False)
        self.assertEqual((self.live(), array[MIB - 1], array[MIB]), (1, 1.0, 0.0))
        array.resize(3, refcheck=False)
        self.assertEqual(self.live(), 0)
        self.assertEqual(array.sum() + later.sum(), MIB + 3)
        later.resize(2 * MIB, refcheck=False)
        self.assertEqual(self.live(), 0)

    def test_enable_twice(self):
        hetmem.numpy.enable(self.pool)
        try:
            self.assertTrue(hetmem.numpy.enabled())
            with self.assertRaises(hetmem.HetmemError) as caught:
                hetmem.numpy.enable(self.pool)
            self.assertEqual(caught.exception.errno, errno.EALREADY)
            # A part of the program can have another resource.
            with hetmem.numpy.using("pool(managed)") as other:
                array = np.ones(MIB)
                self.assertEqual((self.live(), other.stats().live), (0, 1))
            self.assertTrue(hetmem.numpy.enabled())
            more = np.ones(MIB)
            self.assertEqual(self.live(), 1)
            del array, more
            self.assertEqual((self.live(), other.stats().live), (0, 0))
        finally:
            hetmem.numpy.disable()
        self.assertFalse(hetmem.numpy.enabled())
        hetmem.numpy.disable()
        self.assertIs(threading.Thread.start, hetmem._threads._start)

    def test_bad_arguments(self):
        for argument, kind in (("pool(hst)", hetmem.HetmemError),
                               ("device-pool", hetmem.HetmemError)):
            with self.assertRaises(kind) as caught:
                hetmem.numpy.enable(argument)
            self.assertFalse(hetmem.numpy.enabled())
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)
        self.assertRaises(ValueError, hetmem.numpy.enable, least=-1)
        self.assertRaises(OverflowError, hetmem.numpy.enable, least=1 << 64)
        self.assertRaises(TypeError, hetmem.numpy.enable, least=1.5)
        with self.assertRaises(KeyError):
            with hetmem.numpy.using(self.pool):
                raise KeyError
        self.assertFalse(hetmem.numpy.enabled())

    def test_resource_is_kept(self):
        with hetmem.numpy.using("pool(host,max=100M)") as pool:
            first = pool.pointer
            array = np.ones(MIB)
        del pool
        gc.collect()
        with hetmem.numpy.using("pool(host,max=100M)") as pool:
            self.assertEqual(pool.pointer, first)
        self.assertEqual(array.sum(), MIB)

    def test_resource_is_not_closed(self):
        with hetmem.Library() as library, library.resource("pool(host)") as pool:
            with hetmem.numpy.using(pool):
                for thing in (pool, library):
                    with self.assertRaises(hetmem.HetmemError) as caught:
                        thing.close()
                    self.assertEqual(caught.exception.errno, errno.EBUSY)
                array = np.ones(MIB)
        self.assertEqual(pool.stats().live, 1)
        self.assertEqual(array.sum(), MIB)
        del array
        self.assertEqual(pool.stats().live, 0)

    def test_out_of_memory(self):
        with hetmem.numpy.using("pool(host,max=16M)") as pool:
            array = np.ones(MIB)
            for make in (np.empty, np.zeros):
                self.assertRaises(MemoryError, make, 4 * MIB)
            with self.assertRaises(MemoryError):
                array.resize(4 * MIB, refcheck=False)
            self.assertEqual((array.sum(), pool.stats().live), (MIB, 1))

    def test_threads(self):
        def made():
            return np.ones(MIB), hetmem.numpy.enabled()

        class Own(threading.Thread):
            def run(self):
                self.result = made()

        early_go, early = threading.Event(), []
        thread = threading.Thread(
            target=lambda: (early_go.wait(), early.append(made())))
        thread.start()
        with self.assertWarnsRegex(RuntimeWarning, "1 other threads run already"):
            hetmem.numpy.enable(self.pool)
        try:
            own = Own()
            own.start()
            own.join()
            with concurrent.futures.ThreadPoolExecutor(2) as executor:
                arrays = [executor.submit(made).result() for _ in range(4)]
            timer, timed = threading.Timer(0, lambda: timed.append(made())), []
            timer.start()
            timer.join()
        finally:
            hetmem.numpy.disable()
        self.assertEqual([state for _, state in [own.result, *arrays, *timed]],
                         [True] * 6)
        self.assertEqual(self.live(), 6)
        self.assertNotIn("run", own.__dict__)
        early_go.set()
        thread.join()
        self.assertEqual(early[0][1], False)
        after, threads = [], threading.Thread(target=lambda: after.append(made()))
        threads.start()
        threads.join()
        self.assertEqual((after[0][1], self.live()), (False, 6))
        del arrays, own, timed
        self.assertEqual(self.live(), 0)

    def test_thread_that_cannot_start(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            hetmem.numpy.enable(self.pool)
        try:
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
            self.assertRaises(RuntimeError, thread.start)
            self.assertNotIn("run", thread.__dict__)
        finally:
            hetmem.numpy.disable()

    def test_without_threads(self):
        hetmem.numpy.enable(self.pool, threads=False)
        try:
            state = []
            thread = threading.Thread(
                target=lambda: state.append(hetmem.numpy.enabled()))
            thread.start()
            thread.join()
        finally:
            hetmem.numpy.disable()
        if not getattr(__import__("sys").flags, "thread_inherit_context", 0):
            self.assertEqual(state, [False])

    def test_context(self):
        hetmem.numpy.enable(self.pool, threads=False)
        context = contextvars.copy_context()
        hetmem.numpy.disable()
        self.assertTrue(context.run(hetmem.numpy.enabled))
        self.assertFalse(hetmem.numpy.enabled())

    def test_arrays_freed_by_other_threads(self):
        with hetmem.numpy.using(self.pool, least=1):
            arrays = [np.full(1000 + i, i) for i in range(2000)]

        def work():
            while True:
                try:
                    array = arrays.pop()
                except IndexError:
                    return
                assert (array == array.size - 1000).all()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.live(), 0)

    def test_fork(self):
        for spec in ("pool(host)", "pool(managed)", "unified"):
            with hetmem.numpy.using(spec, least=1) as pool:
                array = np.arange(MIB)

                def work(array=array, spec=spec):
                    if spec == "pool(host)":
                        self.assertEqual(array[-1], MIB - 1)
                    more = np.arange(2 * MIB)
                    self.assertEqual(more.sum(), MIB * (2 * MIB - 1))
                    more = np.append(more, 1)
                    del more, array
                    gc.collect()

                self.fork(work)
                self.assertEqual(pool.stats().live, 1)

    def test_fork_enables_again(self):
        hetmem.numpy.enable("pool(host,max=64M)")

        def work():
            hetmem.numpy.disable()
            own = hetmem.numpy.enable("pool(host,max=64M)")
            array = np.ones(MIB)
            self.assertEqual(own.stats().live, 1)
            del array

        try:
            self.fork(work)
        finally:
            hetmem.numpy.disable()

    def test_end_of_the_interpreter(self):
        self.silent("""
            import hetmem.numpy, numpy as np, sys, threading
            hetmem.numpy.enable("pool(host)", least=1)
            keep = [np.ones(100000) for _ in range(10)]
            sys.keep = keep[3:5]
            class Cycle: pass
            cycle = Cycle(); cycle.self = cycle; cycle.array = np.ones(1 << 20)
            with hetmem.numpy.using("unified"): more = np.ones(1 << 20)
            """)
        self.silent("""
            import hetmem.numpy, numpy as np, threading, time
            hetmem.numpy.enable("pool(host)", least=1)
            count = [0]
            def work():
                while True:
                    np.ones(10000); count[0] += 1
            for _ in range(3): threading.Thread(target=work, daemon=True).start()
            while count[0] < 1000: time.sleep(0.01)
            """)

    def test_pickle_and_copy(self):
        import copy
        import pickle
        with hetmem.numpy.using(self.pool):
            array = np.arange(MIB)
            again = pickle.loads(pickle.dumps(array))
            twice = copy.deepcopy(array)
        np.testing.assert_array_equal(array, again)
        np.testing.assert_array_equal(array, twice)

    def test_block_as_an_array(self):
        block = self.pool.alloc(MIB)
        array = np.asarray(block).view(np.float32)
        array[:] = 1
        self.assertEqual(array.ctypes.data, block.ptr)
        del block
        self.assertEqual((self.live(), array.sum()), (1, MIB // 4))
        del array
        self.assertEqual(self.live(), 0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tap.main()
