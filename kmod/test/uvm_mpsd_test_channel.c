// SPDX-License-Identifier: MIT OR GPL-2.0
/* A channel of a made-up GPU, and the RM that stops it. */
#include "uvm_kvmalloc.h"
#include "uvm_mpsd.h"
#include "uvm_mpsd_test_made_up.h"

/* uvm_mpsd_stop.c calls this in place of nvUvmInterfaceStopChannel(): mpsd_test.Kbuild. Like RM, it does not report success. */
void mpsd_test_stop_channel(void *retained, NvBool is_immediate);
void mpsd_test_stop_channel(void *retained, NvBool is_immediate)
{
	struct made_up *made_up = retained;

	atomic_inc(&made_up->stops);
	(void)wait_for_completion_timeout(&made_up->answer, RM_SECONDS * HZ);
}

int mpsd_test_add_channel(struct made_up *made_up)
{
	uvm_user_channel_t *channel = uvm_kvmalloc_zero(sizeof(*channel));

	if (!channel)
		return -ENOMEM;
	nv_kref_init(&channel->kref);
	channel->gpu = made_up->gpu;
	channel->gpu_va_space = &made_up->gpu_va_space;
	channel->rm_retained_channel = made_up;
	atomic_set(&channel->is_bound, 1);
	list_add(&channel->list_node, &made_up->gpu_va_space.registered_channels);
	made_up->channel = channel;
	return 0;
}

/* As uvm_user_channel_detach() and uvm_user_channel_destroy_detached() do it; RM then forgets the channel. */
void mpsd_test_remove_channel(struct made_up *made_up)
{
	uvm_user_channel_t *channel;

	uvm_va_space_down_write(made_up->va_space);
	channel = made_up->channel;
	made_up->channel = NULL;
	if (channel) {
		list_del(&channel->list_node);
		atomic_set(&channel->is_bound, 0);
		channel->gpu_va_space = NULL;
	}
	uvm_va_space_up_write(made_up->va_space);
	if (!channel)
		return;
	uvm_mpsd_channel_goes(channel);
	channel->rm_retained_channel = NULL;
	uvm_user_channel_release(channel);
}

int mpsd_test_act_on_channel(struct made_up *made_up, struct mpsd_test_channel *asked)
{
	if (asked->act > MPSD_TEST_UNREGISTER)
		return -EINVAL;
	if (asked->act == MPSD_TEST_ANSWER)
		complete_all(&made_up->answer);
	if (asked->act == MPSD_TEST_UNREGISTER)
		mpsd_test_remove_channel(made_up);
	uvm_va_space_down_read(made_up->va_space);
	asked->is_bound = made_up->channel && atomic_read(&made_up->channel->is_bound);
	uvm_va_space_up_read(made_up->va_space);
	asked->stops = atomic_read(&made_up->stops);
	asked->has_answered = completion_done(&made_up->answer);
	return 0;
}
