// SPDX-License-Identifier: MIT OR GPL-2.0
/* Policy.  It stays as it is when its setter goes: a client that faults while the daemon is started again is contained too. */
#include <linux/log2.h>
#include <linux/rcupdate.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>

#include "uvm_mpsd_policy.h"

/* Protects everything below.  Nothing but RCU is taken under it. */
static DEFINE_SPINLOCK(policy_lock);

/* Until a reader of the records asks for more, faults are only reported. */
static struct mpsd_fault_policy policy = {
	.mode = MPSD_FAULT_REPORT,
	.max_windows = 64,
	.window_bytes = SZ_2M,
};
static struct pid *exempt[MPSD_POLICY_EXEMPT_MAX]; /* each holds a reference, so that its number is not reused */

struct mpsd_fault_policy mpsd_policy_get(void)
{
	struct mpsd_fault_policy copy;
	unsigned long flags;

	spin_lock_irqsave(&policy_lock, flags);
	copy = policy;
	spin_unlock_irqrestore(&policy_lock, flags);
	return copy;
}

int mpsd_policy_set(const struct mpsd_fault_policy *asked)
{
	unsigned long flags;

	if (asked->mode > MPSD_FAULT_SINK_KILL)
		return -EINVAL;
	if (asked->max_windows < 1 || asked->max_windows > MPSD_POLICY_WINDOWS_MAX)
		return -EINVAL;
	if (!is_power_of_2(asked->window_bytes) || asked->window_bytes < SZ_64K || asked->window_bytes > MPSD_FAULT_WINDOW_MAX)
		return -EINVAL;
	spin_lock_irqsave(&policy_lock, flags);
	policy = *asked;
	spin_unlock_irqrestore(&policy_lock, flags);
	return 0;
}

static bool is_alive(struct pid *process)
{
	bool alive;

	rcu_read_lock();
	alive = !!pid_task(process, PIDTYPE_TGID);
	rcu_read_unlock();
	return alive;
}

/* A place for `process`: the one it has, a free one, or that of a process that is gone.  NULL: none.  policy_lock is held. */
static struct pid **place_for(const struct pid *process)
{
	struct pid **found = NULL;
	unsigned int i;

	for (i = 0; i < MPSD_POLICY_EXEMPT_MAX; i++) {
		if (exempt[i] == process)
			return &exempt[i];
		if (!found && (!exempt[i] || !is_alive(exempt[i])))
			found = &exempt[i];
	}
	return found;
}

int mpsd_policy_exempt(pid_t tgid)
{
	struct pid *process = find_get_pid(tgid), *before = NULL;
	struct pid **place;
	unsigned long flags;

	if (!process || !is_alive(process)) {
		put_pid(process);
		return -ESRCH;
	}
	spin_lock_irqsave(&policy_lock, flags);
	place = place_for(process);
	if (place) {
		before = *place;
		*place = process;
	}
	spin_unlock_irqrestore(&policy_lock, flags);
	put_pid(place ? before : process);
	return place ? 0 : -ENOSPC;
}

bool mpsd_policy_is_exempt(const struct pid *process)
{
	bool is_exempt = false;
	unsigned long flags;
	unsigned int i;

	if (!process)
		return false;
	spin_lock_irqsave(&policy_lock, flags);
	for (i = 0; i < MPSD_POLICY_EXEMPT_MAX && !is_exempt; i++)
		is_exempt = exempt[i] == process;
	spin_unlock_irqrestore(&policy_lock, flags);
	return is_exempt;
}

void mpsd_policy_close(void)
{
	unsigned int i;

	for (i = 0; i < MPSD_POLICY_EXEMPT_MAX; i++) {
		put_pid(exempt[i]);
		exempt[i] = NULL;
	}
}
