// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Keeps a fatal MMU fault inside the MPS client that made it.
 *
 * UVM answers a fatal fault by cancelling the access.  The MMU then raises a fault that cannot be repeated, RM resets the
 * channel group, and under MPS every client is in that group.  Here the address gets a window of sparse entries instead: the
 * access completes when it is repeated, no channel is reset, and the client is marked condemned, stopped and reported.
 *
 *   fault ──▶ why_not()? ──▶ a window ──▶ FAULT, sunk ──▶ stop() on the GPU's queue ──▶ STOPPED ──▶ uvm_mpsd_release() ──▶ GONE
 *                 │              │ none possible
 *                 └──────────────┴──▶ FAULT, cancelled, and why ──▶ UVM's own way
 *
 * After STOPPED the client's address space must still stay.  Under MPS work that has begun goes on after its channels are
 * stopped
 * ("Replayable MPS Behavior" in uvm_va_space_mm.c), and what it accesses once the page directory is unset is cancelled, which
 * resets the group.  The module maps windows for such work as long as the address space exists.
 *
 * Locks, outermost first: the VA space's (its caller's), condemned->lock, UVM's below the VA space's.  condemned_lock is
 * innermost.
 */
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "uvm_api.h"
#include "uvm_mpsd.h"
#include "uvm_mpsd_compat.h"
#include "uvm_mpsd_device.h"
#include "uvm_mpsd_policy.h"
#include "uvm_mpsd_record.h"
#include "uvm_mpsd_ring.h"
#include "uvm_mpsd_stop.h"
#include "uvm_mpsd_window.h"

/*
 * Each so many windows are twice as large as those before, up to MPSD_FAULT_WINDOW_MAX: who strays far is caught with few, who
 * strays a little loses little.
 */
#define WINDOWS_OF_ONE_SIZE 8

/* A client on one GPU, from its first absorbed fault until its GPU VA space goes. */
struct condemned {
	struct list_head node; /* condemned_lock */
	uvm_gpu_va_space_t *gpu_va_space;
	struct pid *process; /* a reference, or NULL */
	struct mutex lock;   /* everything below */
	struct list_head windows;
	u32 window_count;
	bool is_stopping, is_killed;
	nv_kthread_q_item_t stop;
};

static DEFINE_MUTEX(condemned_lock); /* protects the list, not what is in it */
static LIST_HEAD(condemned_list);
static bool has_device; /* written at load, before anything can fault */

/* condemned_lock is held. */
static struct condemned *find(uvm_gpu_va_space_t *gpu_va_space)
{
	struct condemned *condemned;

	list_for_each_entry(condemned, &condemned_list, node)
		if (condemned->gpu_va_space == gpu_va_space)
			return condemned;
	return NULL;
}

static struct condemned *create(uvm_gpu_va_space_t *gpu_va_space, struct pid *process)
{
	struct condemned *condemned = kzalloc(sizeof(*condemned), NV_UVM_GFP_FLAGS | __GFP_NOWARN);

	if (!condemned)
		return NULL;
	condemned->gpu_va_space = gpu_va_space;
	condemned->process = get_pid(process);
	mutex_init(&condemned->lock);
	INIT_LIST_HEAD(&condemned->windows);
	return condemned;
}

/*
 * The entry of this GPU VA space; it stays while the caller holds the VA space's lock, since release comes after. NULL: no
 * memory. It is made at the first fault that is to be absorbed; until a window is mapped for it, it reports and stops no
 * client.
 */
static struct condemned *find_or_create(uvm_gpu_va_space_t *gpu_va_space, struct pid *process)
{
	struct condemned *condemned;

	mutex_lock(&condemned_lock);
	condemned = find(gpu_va_space);
	if (!condemned) {
		condemned = create(gpu_va_space, process);
		if (condemned)
			list_add(&condemned->node, &condemned_list);
	}
	mutex_unlock(&condemned_lock);
	return condemned;
}

/*
 * Context: the GPU's kill_channel_q, which UVM flushes before it suspends and before a VA space goes; sleeps, for seconds
 * where a kernel does not end.
 */
static void stop(void *argument)
{
	struct condemned *condemned = argument;
	struct mpsd_fault_record record = { .kind = MPSD_FAULT_KIND_STOPPED };

	mpsd_stop_channels(condemned->gpu_va_space);
	mpsd_record_client(&record, condemned->gpu_va_space, condemned->process);
	mpsd_ring_push(&record);
	if (condemned->is_killed && condemned->process)
		kill_pid(condemned->process, SIGKILL, 1);
}

static void stop_entry(void *argument)
{
	UVM_ENTRY_VOID(stop(argument));
}

/*
 * Its lock is held. A client that is to be killed is frozen first: the values it reads from now on are not those it computed,
 * and no process may take them for a result. If the policy leaves its end to the daemon, the daemon freezes it.
 */
static void begin_stop(struct condemned *condemned, bool kill)
{
	uvm_parent_gpu_t *parent = condemned->gpu_va_space->gpu->parent;

	condemned->is_stopping = true;
	condemned->is_killed = kill;
	if (kill && condemned->process)
		kill_pid(condemned->process, SIGSTOP, 1);
	nv_kthread_q_item_init(&condemned->stop, stop_entry, condemned);
	nv_kthread_q_schedule_q_item(&parent->isr.kill_channel_q, &condemned->stop);
}

/* UVM cancels more than what is at fault: its entry, or the reason it gives, is not of the client's doing. */
static bool is_unproven(const uvm_fault_buffer_entry_t *fault)
{
	return !fault->is_fatal || fault->fatal_reason == UvmEventFatalReasonOutOfMemory ||
	       fault->fatal_reason == UvmEventFatalReasonInternalError;
}

/* The reasons that can be known without looking at page tables. is_known: a missing process has gone. */
static enum mpsd_fault_why why_not(uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault,
				   const struct pid *process, bool is_known, const struct mpsd_fault_policy *policy)
{
	if (is_unproven(fault)) /* in every mode: the reader must not take it for the client's fault */
		return MPSD_FAULT_WHY_GLOBAL;
	if (policy->mode < MPSD_FAULT_SINK)
		return MPSD_FAULT_WHY_POLICY;
	if (mpsd_policy_is_exempt(process))
		return MPSD_FAULT_WHY_EXEMPT;
	if (gpu_va_space->va_space->initialization_flags & UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE)
		return MPSD_FAULT_WHY_SHARED; /* one VA space for several processes: all would be stopped */
	if (!process && !is_known)
		return MPSD_FAULT_WHY_OWNER; /* it may be an MPS server, and no process could end it */
	if (!gpu_va_space->gpu->parent->isr.non_replayable_faults.handling)
		return MPSD_FAULT_WHY_UNSUPPORTED; /* before Volta: no subcontexts, and no queue to stop a client on */
	if (!fault->is_virtual)
		return MPSD_FAULT_WHY_PHYSICAL;
	if (fault->fault_type >= UVM_FAULT_TYPE_FATAL)
		return MPSD_FAULT_WHY_TYPE;
	return MPSD_FAULT_WHY_NONE;
}

static struct mpsd_window *find_window(struct condemned *condemned, NvU64 address)
{
	struct mpsd_window *window;

	list_for_each_entry(window, &condemned->windows, node)
		if (address >= window->start && address <= window->end)
			return window;
	return NULL;
}

static NvU64 next_window_bytes(const struct condemned *condemned, const struct mpsd_fault_policy *policy)
{
	u32 doublings = min_t(u32, condemned->window_count / WINDOWS_OF_ONE_SIZE,
			      ilog2(MPSD_FAULT_WINDOW_MAX / policy->window_bytes));

	return policy->window_bytes << doublings;
}

/* Its lock is held.  Fills in action and window of the record. */
static enum mpsd_fault_why cover(struct condemned *condemned, NvU64 address, const struct mpsd_fault_policy *policy,
				 struct mpsd_fault_record *record)
{
	struct mpsd_window *window = find_window(condemned, address);
	enum mpsd_fault_why why;
	u8 action = MPSD_FAULT_ALREADY;

	if (window) {
		why = mpsd_window_renew(window);
	} else {
		if (condemned->window_count >= policy->max_windows)
			return MPSD_FAULT_WHY_BUDGET;
		why = mpsd_window_lay(condemned->gpu_va_space, address, next_window_bytes(condemned, policy), &window);
		action = MPSD_FAULT_SUNK;
	}
	if (why)
		return why;
	if (action == MPSD_FAULT_SUNK) {
		list_add(&window->node, &condemned->windows);
		condemned->window_count++;
	}
	record->action = action;
	record->window_base = window->start;
	record->window_bytes = window->end - window->start + 1;
	return MPSD_FAULT_WHY_NONE;
}

/*
 * A window for the fault, and at the first one the sentence.  The record goes out before the stop can, under the lock: a
 * client's FAULT comes before its STOPPED.  True: absorbed.
 */
static bool absorb(uvm_gpu_va_space_t *gpu_va_space, struct pid *process, const struct mpsd_fault_policy *policy,
		   struct mpsd_fault_record *record)
{
	struct condemned *condemned = find_or_create(gpu_va_space, process);

	if (!condemned) {
		record->why = MPSD_FAULT_WHY_MEMORY;
		mpsd_ring_push(record);
		return false;
	}
	mutex_lock(&condemned->lock);
	record->why = cover(condemned, record->address, policy, record);
	if (!record->why && !condemned->is_stopping)
		record->flags |= MPSD_FAULT_FIRST;
	if (record->action != MPSD_FAULT_ALREADY) /* thousands of threads, one page after the other: one record a window */
		mpsd_ring_push(record);
	if (record->flags & MPSD_FAULT_FIRST)
		begin_stop(condemned, policy->mode == MPSD_FAULT_SINK_KILL);
	mutex_unlock(&condemned->lock);
	return !record->why;
}

/* As mpsd_record_owner().  One that is condemned is still named when it has gone and its address space is held. */
static struct pid *client_of(uvm_gpu_va_space_t *gpu_va_space, bool *is_known)
{
	struct condemned *condemned;
	struct pid *process = NULL;

	mutex_lock(&condemned_lock);
	condemned = find(gpu_va_space);
	if (condemned)
		process = get_pid(condemned->process);
	mutex_unlock(&condemned_lock);
	*is_known = true;
	return process ? process : mpsd_record_owner(gpu_va_space->va_space, is_known);
}

void uvm_mpsd_unproven(uvm_fault_buffer_entry_t *fault)
{
	fault->is_fatal = false; /* UVM looks at it no more */
}

bool uvm_mpsd_absorb(uvm_gpu_va_space_t *gpu_va_space, const uvm_fault_buffer_entry_t *fault)
{
	struct mpsd_fault_record record = { .kind = MPSD_FAULT_KIND_FAULT };
	struct mpsd_fault_policy policy = mpsd_policy_get();
	bool is_absorbed = false, is_known;
	struct pid *process;

	if (!has_device || policy.mode == MPSD_FAULT_OFF)
		return false;
	process = client_of(gpu_va_space, &is_known);
	mpsd_record_client(&record, gpu_va_space, process);
	mpsd_record_fault(&record, fault);
	record.why = why_not(gpu_va_space, fault, process, is_known, &policy);
	if (record.why)
		mpsd_ring_push(&record);
	else
		is_absorbed = absorb(gpu_va_space, process, &policy, &record);
	put_pid(process);
	return is_absorbed;
}

/* Takes it: it is in no list any more, and its stop is over. */
static void destroy(struct condemned *condemned)
{
	struct mpsd_window *window, *next;

	list_for_each_entry_safe(window, next, &condemned->windows, node)
		mpsd_window_lift(window);
	put_pid(condemned->process);
	kfree(condemned);
}

void uvm_mpsd_release(uvm_gpu_va_space_t *gpu_va_space)
{
	struct mpsd_fault_record record = { .kind = MPSD_FAULT_KIND_GONE };
	struct condemned *condemned;

	mutex_lock(&condemned_lock);
	condemned = find(gpu_va_space);
	if (condemned)
		list_del(&condemned->node);
	mutex_unlock(&condemned_lock);
	if (!condemned)
		return;
	if (condemned->is_stopping) {
		nv_kthread_q_flush(&gpu_va_space->gpu->parent->isr.kill_channel_q);
		mpsd_record_client(&record, gpu_va_space, condemned->process);
		mpsd_ring_push(&record);
	}
	destroy(condemned);
}

void uvm_mpsd_init(void)
{
	int failure = mpsd_ring_open();

	if (!failure) {
		failure = mpsd_device_open();
		if (failure)
			mpsd_ring_close();
	}
	has_device = !failure;
	if (failure)
		pr_err("mpsd: no /dev/" MPSD_FAULT_NAME " (%d): fatal faults take UVM's own way\n", failure);
	else
		pr_info("mpsd: /dev/" MPSD_FAULT_NAME " is there; fatal faults are reported until a policy says more\n");
}

void uvm_mpsd_exit(void)
{
	if (!has_device)
		return;
	mpsd_device_close();
	mpsd_policy_close();
	mpsd_ring_close();
}
