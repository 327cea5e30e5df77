/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The policy that user space set: the mode, its limits, and the exempt processes. */
#ifndef UVM_MPSD_POLICY_H
#define UVM_MPSD_POLICY_H

#include <linux/pid.h>
#include <linux/types.h>

#include "mpsd_fault.h"

#define MPSD_POLICY_EXEMPT_MAX 64    /* processes: MPS servers, one or two for each domain */
#define MPSD_POLICY_WINDOWS_MAX 1024 /* of one client */

/* All of these: any context but NMI; they do not sleep. */
struct mpsd_fault_policy mpsd_policy_get(void);

/* 0, or -EINVAL: nothing has changed. */
int mpsd_policy_set(const struct mpsd_fault_policy *asked);

/* `tgid` as the caller sees it.  0; -ESRCH: no such process; -ENOSPC: MPSD_POLICY_EXEMPT_MAX of them live. */
int mpsd_policy_exempt(pid_t tgid);

/* Borrows `process`; NULL is not exempt. */
bool mpsd_policy_is_exempt(const struct pid *process);

/* Forgets everybody, for unloading. */
void mpsd_policy_close(void);

#endif
