// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The drivers that test_hmm can play, for the other tests of this folder: two GPUs with
 * private memory, two whose memory is coherent with the CPUs, and, as test_hmm_2m, two
 * with one pgmap for each 2 MiB. What hetmem makes of them is not looked at here.
 */
#include "libktest/harness.h"
#include "libktest/hmm.h"

#define SIZE	(64 * page_size())

/* How many pages test_hmm has as @what (HMM_DMIRROR_PROT_*), or a negative errno. */
static long pages_seen(int gpu, char *p, size_t size, unsigned int what)
{
	unsigned char *seen = malloc(NR(size));
	struct hmm_dmirror_cmd cmd;
	long i, n;

	n = seen ? gpu_call(gpu, HMM_DMIRROR_SNAPSHOT, p, size, seen, &cmd) : -ENOMEM;
	for (i = 0; i < NR(size) && n >= 0; i++)
		n += (seen[i] & ~(HMM_DMIRROR_PROT_READ | HMM_DMIRROR_PROT_WRITE |
				  HMM_DMIRROR_PROT_PMD)) == what;
	free(seen);
	return n;
}

/* Private: a CPU that touches it brings it back. Coherent: it stays, and is written. */
TEST(private_and_coherent)
{
	int gpu[4], i;

	for (i = 0; i < 4; i++) {
		const bool coherent = i >= GPU_COHERENT;
		const unsigned int there = coherent ?
			HMM_DMIRROR_PROT_DEV_COHERENT_LOCAL :
			HMM_DMIRROR_PROT_DEV_PRIVATE_LOCAL;
		char *p = map_filled(SIZE, i);

		ASSERT_NE(NULL, p);
		gpu[i] = gpu_open(i);
		ASSERT_LE(0, gpu[i]);
		EXPECT_EQ(0, pages_seen(gpu[i], p, SIZE, there));
		ASSERT_EQ(0, to_gpu(gpu[i], p, SIZE, i));
		EXPECT_EQ(NR(SIZE), pages_seen(gpu[i], p, SIZE, there));
		EXPECT_EQ(-1, mismatch(p, SIZE, i));
		EXPECT_EQ(coherent ? NR(SIZE) : 0,
			  pages_seen(gpu[i], p, SIZE, there));
		fill(p, SIZE, 10 + i);
		EXPECT_EQ(coherent ? NR(SIZE) : 0,
			  pages_seen(gpu[i], p, SIZE, there));
		ASSERT_EQ(0, from_gpu(gpu[i], p, SIZE));
		EXPECT_EQ(0, pages_seen(gpu[i], p, SIZE, there));
		EXPECT_EQ(-1, mismatch(p, SIZE, 10 + i));
		munmap(p, SIZE);
	}
	for (i = 0; i < 4; i++)
		close(gpu[i]);
}

/* Regions of the address space that test_hmm_2m has: one for each pgmap. */
static int nr_pgmaps(void)
{
	FILE *f = fopen("/proc/iomem", "r");
	char line[256];
	int n = 0;

	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "hmm_dmirror_2m") != NULL;
	if (f)
		fclose(f);
	return n;
}

/* It makes them as it needs them, and keeps them. */
TEST(one_pgmap_for_each_chunk)
{
	const int chunks = nr_pgmaps() + 2;
	size_t size = chunks * GPU_CHUNK;
	char *p = map_filled(size, 1);
	int gpu = gpu_open_2m(0);

	ASSERT_LE(4, chunks);
	ASSERT_NE(NULL, p);
	ASSERT_LE(0, gpu);
	ASSERT_EQ(0, to_gpu(gpu, p, size, 1));
	EXPECT_EQ(NR(size), pages_seen(gpu, p, size,
				       HMM_DMIRROR_PROT_DEV_PRIVATE_LOCAL));
	/* Those of the other GPU are of no use to this one. */
	EXPECT_LE(chunks + 1, nr_pgmaps());
	EXPECT_EQ(-1, mismatch(p, size, 1));
	EXPECT_EQ(0, pages_seen(gpu, p, size,
				HMM_DMIRROR_PROT_DEV_PRIVATE_LOCAL));
	munmap(p, size);
	close(gpu);
}

TEST_HARNESS_MAIN
