/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* A made-up GPU, between the files of the self test. */
#ifndef UVM_MPSD_TEST_MADE_UP_H
#define UVM_MPSD_TEST_MADE_UP_H

#include <linux/completion.h>
#include <linux/list.h>
#include <linux/mutex.h>

#include "mpsd_test.h"
#include "uvm_mpsd_compat.h"
#include "uvm_user_channel.h"

#define RM_SECONDS 40 /* RM answers after that in any case, so that a test that fails ends */

struct made_up {
	struct file *uvm; /* a reference */
	uvm_va_space_t *va_space;
	uvm_parent_gpu_t *parent;
	uvm_gpu_t *gpu;
	uvm_gpu_va_space_t gpu_va_space;
	struct mutex bottom_half[2]; /* [is_replayable]: UVM serves each kind of fault one at a time, both kinds at once */
	bool has_no_memory;	     /* written under bottom_half[] by who makes the access, and read in it */
	struct list_head mappings;   /* under the VA space's lock, for writing */
	uvm_user_channel_t *channel; /* a reference, or NULL; under the VA space's lock, for writing */
	struct completion answer;    /* RM's answer to the thread that stops the channel */
	atomic_t stops;
	nv_kthread_q_item_t deferred;
	bool is_deferred;
};

typedef typeof(((uvm_page_table_range_vec_t *)0)->page_size) page_bytes_t;

/* 0, or -errno. Context, for all of these: a process, with no lock of UVM's; they sleep. */
int mpsd_test_change_mappings(struct made_up *made_up, unsigned int command, const struct mpsd_test_mapping *asked);
void mpsd_test_unmap_all(struct made_up *made_up);

int mpsd_test_add_channel(struct made_up *made_up);
int mpsd_test_act_on_channel(struct made_up *made_up, struct mpsd_test_channel *asked);
void mpsd_test_remove_channel(struct made_up *made_up);

#endif
