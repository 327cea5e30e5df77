/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Builds of tests/kmod (MPSD_SELFTEST, kmod/test) drive the sink on the GPU that UVM's own tests make up; no other build does. */
#ifndef UVM_MPSD_SELFTEST_H
#define UVM_MPSD_SELFTEST_H

#include <linux/errno.h>

/* 0, or -errno; -ENOTTY: not one of its commands. Context: a process; sleeps. */
#if defined(MPSD_SELFTEST)
long mpsd_selftest_ioctl(unsigned int command, void __user *user);
#else
static inline long mpsd_selftest_ioctl(unsigned int command, void __user *user)
{
	return -ENOTTY;
}
#endif

#endif
