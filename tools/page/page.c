/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The page of `hetmem report --html` and `hetmem replay --html`: its text and its data. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "page.h"
#include "util.h"

#define MARK	"@DATA@"

/* page.html, with a NUL at its end. The Makefile has the dependence. */
__asm__(".pushsection .rodata\n"
	"page_html: .incbin \"tools/page/page.html\"\n"
	".byte 0\n"
	".popsection");
extern const char page_html[];

void page_begin(FILE *f)
{
	fwrite(page_html, 1, strstr(page_html, MARK) - page_html, f);
}

void page_end(FILE *f)
{
	fputs(strstr(page_html, MARK) + strlen(MARK), f);
}

void page_text(FILE *f, const char *text)
{
	char *clean = xescape(text);
	const char *c;

	fputc('"', f);
	for (c = clean; *c; c++) {
		if (strchr("<>&'\"\\", *c))
			fprintf(f, "\\u%04x", *c);
		else
			fputc(*c, f);
	}
	fputc('"', f);
	free(clean);
}

void page_row(FILE *f, bool first, double share, const char *const *cells, size_t nr)
{
	size_t i;

	fprintf(f, "%s[%.4f", first ? "" : ",", share);
	for (i = 0; i < nr; i++) {
		fputc(',', f);
		page_text(f, cells[i]);
	}
	fputc(']', f);
}
