// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver says what CUDA said on an NVIDIA H200, call by call. Where
 * there is a GPU, gpu_same.c asks both.
 */
#include "same_all.h"
#include "same_h200.h"

static const char *recorded(const char *name)
{
	size_t i;

	for (i = 0; i < COUNT(h200); i++)
		if (!strcmp(h200[i].name, name))
			return h200[i].text;
	return "nothing was recorded";
}

/* same [PART OF A NAME] */
int main(int argc, char **argv)
{
	static char texts[NR_PROBES][TEXT];
	const char *named = argc > 1 ? argv[1] : "";
	size_t i;

	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	ask("soft", named, false, texts);
	for (i = 0; i < NR_PROBES; i++)
		if (strstr(name_of(i), named) &&
		    !ok(!strcmp(texts[i], recorded(name_of(i))), "%s",
			name_of(i)))
			printf("# is:   %s\n# cuda: %s\n", texts[i],
			       recorded(name_of(i)));
	return tap_end();
}
