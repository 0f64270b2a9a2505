// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The tree of holes against an array of pages, for reservations of any size.
 */
#include "soft_driver.h"
#include "vmm/vmm_impl.h"

static unsigned int seed = 1;

static unsigned int any_of(unsigned int nr)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % nr;
}

static uint32_t holes_at(const struct vmm *v, uint32_t page)
{
	uint32_t n = 0;

	while (page + n < v->nr && !v->map[page + n])
		n++;
	return n;
}

static uint32_t longest(const struct vmm *v)
{
	uint32_t page, n, most = 0;

	for (page = 0; page < v->nr; page += n ? n : 1) {
		n = holes_at(v, page);
		most = n > most ? n : most;
	}
	return most;
}

static bool one_round(struct vmm *v)
{
	uint32_t page = any_of(v->nr), most, want, found;
	enum vmm_place place = any_of(NR_PLACES);

	hm_vmm_set_pages(v, page, 1 + any_of(v->nr - page),
			 any_of(2) ? 1 + any_of(100) : 0);
	page = any_of(v->nr);
	if (hm_vmm_holes(v, page, UINT32_MAX) != holes_at(v, page))
		return false;
	most = longest(v);
	want = 1 + any_of(v->nr);
	if (hm_vmm_find_hole(v, place, want, &found) != (want <= most))
		return false;
	return want > most || (found + want <= v->nr && holes_at(v, found) >= want);
}

static void compare(uint32_t nr)
{
	struct vmm v = { .nr = nr };
	unsigned int i, wrong = 0;

	v.map = calloc(3 * (size_t)nr, sizeof(*v.map));
	need(v.map && !hm_holes_init(&v), "memory");
	v.head = v.map + nr;
	v.tail = v.head + nr;
	for (i = 0; i < 20000; i++)
		wrong += !one_round(&v);
	is(wrong, 0, "%u pages: the tree has what the array has", nr);
	free(v.map);
	hm_holes_free(&v);
}

int main(void)
{
	static const uint32_t sizes[] = { 1, 2, 3, 7, 64, 65, 100, 257, 1000 };
	unsigned int i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		compare(sizes[i]);
	return tap_end();
}
