// SPDX-License-Identifier: GPL-2.0
/* eventfd_signal(ctx, n): the number to add was an argument. */
#include <linux/eventfd.h>

void ask(struct eventfd_ctx *ctx);

void ask(struct eventfd_ctx *ctx)
{
	eventfd_signal(ctx, 1);
}
