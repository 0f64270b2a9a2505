// SPDX-License-Identifier: GPL-2.0
/* eventfd_signal(eventfd) adds one; there was a second argument, how many. */
#include <linux/eventfd.h>

void ask(struct eventfd_ctx *eventfd);

void ask(struct eventfd_ctx *eventfd)
{
	eventfd_signal(eventfd);
}
