/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What a test program includes first: the kernel's own harness, and of libktest what
 * nearly every program needs. The harness is not for libktest itself, which knows no
 * tests: its functions return what is wrong, and the test asserts.
 *
 * A test that must be skipped says "kernel lacks ..." first: ktest takes any other reason
 * for a failure.
 */
#ifndef LIBKTEST_HARNESS_H
#define LIBKTEST_HARNESS_H

#include "kselftest_harness.h"

/* No alarm: ktest ends what does not end, by the time that the machine had. */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT 0

#include "libktest/base.h"
#include "libktest/commands.h"
#include "libktest/memory.h"
#include "libktest/view.h"

#endif
