// SPDX-License-Identifier: MIT OR GPL-2.0
/* Has RM stop the channels of a client, without holding any lock of UVM's meanwhile. */
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/wait.h>

#include "nv_uvm_interface.h"
#include "uvm_mpsd.h"
#include "uvm_mpsd_compat.h"
#include "uvm_mpsd_stop.h"
#include "uvm_user_channel.h"

/* A channel that RM is asked to stop, on the stack of the stopping thread. */
struct stopping {
	struct list_head node; /* stopping_lock */
	uvm_user_channel_t *channel; /* a reference */
};

/* Protects the list and who is in it.  Innermost, below the VA space's lock. */
static DEFINE_SPINLOCK(stopping_lock);
static LIST_HEAD(stopping_list);
static DECLARE_WAIT_QUEUE_HEAD(stopping_over); /* woken when an entry leaves stopping_list */

/* From here on UVM registers no further channel in its VA space, as it does where it stops all channels by itself. */
static void close_to_channels(uvm_gpu_va_space_t *own)
{
	uvm_va_space_t *va_space = own->va_space;
	uvm_gpu_va_space_t *gpu_va_space;

	uvm_va_space_down_write(va_space); /* a registration that is under way ends first */
	atomic_set(&own->disallow_new_channels, 1);
	for_each_gpu_va_space(gpu_va_space, va_space)
		atomic_set(&gpu_va_space->disallow_new_channels, 1);
	uvm_va_space_up_write(va_space);
}

/* The VA space's lock is held.  NULL: none of this GPU's runs any more. */
static uvm_user_channel_t *running_channel(uvm_gpu_va_space_t *gpu_va_space)
{
	uvm_user_channel_t *channel;

	list_for_each_entry(channel, &gpu_va_space->registered_channels, list_node)
		if (channel->rm_retained_channel && atomic_read(&channel->is_bound))
			return channel;
	return NULL;
}

/* False: the VA space has no running channel. True: RM keeps a running one until finish_stopping(). */
static bool begin_stopping(uvm_gpu_va_space_t *own, struct stopping *stopping)
{
	uvm_va_space_t *va_space = own->va_space;
	uvm_gpu_va_space_t *gpu_va_space;

	uvm_va_space_down_read(va_space);
	stopping->channel = running_channel(own);
	for_each_gpu_va_space(gpu_va_space, va_space)
		if (!stopping->channel)
			stopping->channel = running_channel(gpu_va_space);
	if (stopping->channel) {
		uvm_user_channel_retain(stopping->channel);
		spin_lock(&stopping_lock);
		list_add(&stopping->node, &stopping_list);
		spin_unlock(&stopping_lock);
	}
	uvm_va_space_up_read(va_space);
	return stopping->channel;
}

static void finish_stopping(struct stopping *stopping)
{
	atomic_set(&stopping->channel->is_bound, 0); /* as uvm_user_channel_stop(): never 1 again */
	spin_lock(&stopping_lock);
	list_del(&stopping->node);
	spin_unlock(&stopping_lock);
	wake_up_all(&stopping_over);
	uvm_user_channel_release(stopping->channel);
}

static bool is_being_stopped(const uvm_user_channel_t *channel)
{
	struct stopping *stopping;
	bool is_found = false;

	spin_lock(&stopping_lock);
	list_for_each_entry(stopping, &stopping_list, node)
		is_found |= stopping->channel == channel;
	spin_unlock(&stopping_lock);
	return is_found;
}

/* For as long as RM takes to stop one channel: its default time-out, and a preemption. */
void uvm_mpsd_channel_goes(uvm_user_channel_t *channel)
{
	wait_event(stopping_over, !is_being_stopped(channel));
}

void mpsd_stop_channels(uvm_gpu_va_space_t *gpu_va_space)
{
	struct stopping stopping;

	close_to_channels(gpu_va_space);
	while (begin_stopping(gpu_va_space, &stopping)) {
		if (mpsd_is_accessible(stopping.channel->gpu))
			uvm_rm_locked_call_void(nvUvmInterfaceStopChannel(stopping.channel->rm_retained_channel, NV_FALSE));
		finish_stopping(&stopping);
	}
}
