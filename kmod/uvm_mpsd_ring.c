// SPDX-License-Identifier: MIT OR GPL-2.0
/* The ring of records. Writers never wait for readers: a slow reader gets the number of records that were overwritten. */
#include <linux/ktime.h>
#include <linux/minmax.h>
#include <linux/sched.h> /* wake_up_interruptible() names states of tasks */
#include <linux/spinlock.h>
#include <linux/vmalloc.h>

#include "uvm_mpsd_ring.h"

/* Protects `ring`, `newest` and every reader's place.  Innermost: nothing is taken under it. */
static DEFINE_SPINLOCK(ring_lock);
static struct mpsd_fault_record *ring; /* written at load and unload only, when no other thread uses it */
static u64 newest;		       /* read without the lock by mpsd_ring_newest() */

DECLARE_WAIT_QUEUE_HEAD(mpsd_ring_readers);

int mpsd_ring_open(void)
{
	ring = vzalloc(MPSD_RING_RECORDS * sizeof(*ring));
	return ring ? 0 : -ENOMEM;
}

void mpsd_ring_close(void)
{
	vfree(ring);
	ring = NULL;
}

static struct mpsd_fault_record *slot(u64 sequence)
{
	return &ring[(sequence - 1) % MPSD_RING_RECORDS];
}

void mpsd_ring_push(struct mpsd_fault_record *record)
{
	unsigned long flags;

	record->size = sizeof(*record);
	record->major = MPSD_FAULT_MAJOR;
	spin_lock_irqsave(&ring_lock, flags);
	record->monotonic_ns = ktime_get_ns(); /* under the lock: later records have later times */
	record->sequence = newest + 1;
	*slot(record->sequence) = *record;
	WRITE_ONCE(newest, record->sequence);
	spin_unlock_irqrestore(&ring_lock, flags);
	wake_up_interruptible(&mpsd_ring_readers);
}

bool mpsd_ring_take(u64 *place, struct mpsd_fault_record *record)
{
	unsigned long flags;
	bool is_there;
	u64 lost = 0;

	spin_lock_irqsave(&ring_lock, flags);
	is_there = *place != newest;
	if (is_there) {
		if (newest - *place > MPSD_RING_RECORDS) {
			lost = newest - *place - MPSD_RING_RECORDS;
			*place += lost;
		}
		*record = *slot(++*place);
	}
	spin_unlock_irqrestore(&ring_lock, flags);
	if (lost) {
		record->lost = min_t(u64, lost, U32_MAX);
		record->flags |= MPSD_FAULT_LOST;
	}
	return is_there;
}

u64 mpsd_ring_newest(void)
{
	return READ_ONCE(newest);
}
