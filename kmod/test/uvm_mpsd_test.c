// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Drives the sink without a GPU, on the one that upstream's test of page tables makes up: real page tables in system memory, no
 * copy engine, no interrupts. The VA space that the sink queries (ranges, owner, locks) is the caller's real one.
 *
 * Each made-up GPU is a file; as long as it is open its VA space's file is too. Locks, outermost first: `bottom_half`, the VA
 * space's, a range's tree of mappings.
 */
#include <linux/anon_inodes.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

/* The made-up GPU is static there. */
#define uvm_test_page_tree mpsd_test_unused
#include "uvm_page_tree_test.c"
#undef uvm_test_page_tree

#include "uvm_mpsd.h"
#include "uvm_mpsd_compat.h"
#include "uvm_mpsd_selftest.h"
#include "uvm_mpsd_test_made_up.h"

#define FIRST_GPU_INDEX 16 /* in a VA space's tables of GPUs; they have 32 places at least, and here none is real */

/* uvm_mpsd_window.c calls this where it means uvm_page_table_range_vec_create(): mpsd_test.Kbuild. */
NV_STATUS mpsd_test_range_vec_create(uvm_page_tree_t *tree, NvU64 start, NvU64 size, page_bytes_t page_size,
					 uvm_pmm_alloc_flags_t flags, uvm_page_table_range_vec_t **made);
NV_STATUS mpsd_test_range_vec_create(uvm_page_tree_t *tree, NvU64 start, NvU64 size, page_bytes_t page_size,
					 uvm_pmm_alloc_flags_t flags, uvm_page_table_range_vec_t **made)
{
	if (container_of(tree, struct made_up, gpu_va_space.page_tables)->has_no_memory)
		return NV_ERR_NO_MEMORY;
	return uvm_page_table_range_vec_create(tree, start, size, page_size, flags, made);
}

static int get(void *to, const void __user *from, size_t bytes)
{
	return copy_from_user(to, from, bytes) ? -EFAULT : 0;
}

static bool is_possible(const struct mpsd_test_access *asked)
{
	return asked->fault_type < UVM_FAULT_TYPE_COUNT && asked->access_type < UVM_FAULT_ACCESS_TYPE_COUNT &&
	       asked->client_type < UVM_FAULT_CLIENT_TYPE_COUNT && asked->engine_type < UVM_MMU_ENGINE_TYPE_COUNT &&
	       asked->reason < UvmEventNumFatalReasons && IS_ALIGNED(asked->address, SZ_4K) && !asked->reserved;
}

static uvm_fault_buffer_entry_t fault_of(const struct mpsd_test_access *asked, uvm_va_space_t *va_space)
{
	uvm_fault_buffer_entry_t fault = {
		.fault_address = asked->address,
		.timestamp = asked->gpu_ns,
		.fault_type = asked->fault_type,
		.fault_access_type = asked->access_type,
		.access_type_mask = 1 << asked->access_type,
		.fatal_reason = asked->reason,
		.va_space = va_space,
		.is_fatal = true,
		.is_virtual = !(asked->flags & MPSD_TEST_PHYSICAL),
		.is_replayable = !!(asked->flags & MPSD_TEST_REPLAYABLE),
		.num_instances = 1,
	};

	fault.fault_source.client_type = asked->client_type;
	fault.fault_source.mmu_engine_type = asked->engine_type;
	fault.fault_source.client_id = asked->client_id;
	fault.fault_source.ve_id = asked->ve_id;
	if (fault.is_replayable)
		fault.fault_source.gpc_id = asked->gpc_id; /* shares its place with the channel */
	else
		fault.fault_source.channel_id = asked->channel;
	return fault;
}

/* With the locks of UVM's bottom halves. */
static int access_memory(struct made_up *made_up, struct mpsd_test_access *asked)
{
	uvm_fault_buffer_entry_t fault;
	struct mutex *bottom_half;
	struct mm_struct *mm;
	u64 began_ns;

	if (!is_possible(asked))
		return -EINVAL;
	fault = fault_of(asked, made_up->va_space);
	if (asked->flags & MPSD_TEST_BATCH)
		uvm_mpsd_unproven(&fault);
	bottom_half = &made_up->bottom_half[fault.is_replayable];
	mutex_lock(bottom_half);
	made_up->has_no_memory = asked->flags & MPSD_TEST_NO_MEMORY;
	mm = uvm_va_space_mm_retain_lock(made_up->va_space);
	uvm_va_space_down_read(made_up->va_space);
	began_ns = ktime_get_ns();
	if (uvm_mpsd_absorb(&made_up->gpu_va_space, &fault))
		asked->flags |= MPSD_TEST_ABSORBED;
	asked->took_ns = ktime_get_ns() - began_ns;
	uvm_va_space_up_read(made_up->va_space);
	uvm_va_space_mm_release_unlock(made_up->va_space, mm);
	made_up->has_no_memory = false;
	mutex_unlock(bottom_half);
	return 0;
}

/* The table that holds entries for pages of this size at `address`, and the index of the entry; NULL: not found. */
static uvm_page_directory_t *find_table(uvm_page_tree_t *tree, NvU64 address, NvU32 page_bytes, NvU32 *index)
{
	uvm_mmu_mode_hal_t *hal = tree->hal;
	uvm_page_directory_t *table = tree->root;
	NvU32 shift = hal->num_va_bits();

	while (table) {
		NvU32 bits = hal->index_bits(table->depth, page_bytes);

		shift -= bits;
		*index = (address >> shift) & ((1ull << bits) - 1);
		if (table->depth == hal->page_table_depth(page_bytes))
			break;
		table = table->entries[hal->entries_per_index(table->depth) * *index + hal->entry_offset(table->depth, page_bytes)];
	}
	return table;
}

static int read_entry(struct made_up *made_up, struct mpsd_test_entry *asked)
{
	uvm_page_tree_t *tree = &made_up->gpu_va_space.page_tables;
	uvm_page_directory_t *table;
	NvU32 index;

	if (!is_power_of_2(asked->page_bytes) || !(asked->page_bytes & tree->hal->page_sizes()))
		return -EINVAL;
	uvm_mutex_lock(&tree->lock);
	table = find_table(tree, asked->address, asked->page_bytes, &index);
	asked->is_there = table != NULL;
	asked->value = 0;
	if (table)
		memcpy(&asked->value, page_address(table->phys_alloc.handle.page) + index * tree->hal->entry_size(table->depth),
		       sizeof(asked->value));
	uvm_mutex_unlock(&tree->lock);
	return 0;
}

static long made_up_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct made_up *made_up = file->private_data;
	void __user *user = (void __user *)argument;
	struct mpsd_test_channel channel;
	struct mpsd_test_mapping mapping;
	struct mpsd_test_access access;
	struct mpsd_test_entry entry;
	long failure;

	switch (command) {
	case MPSD_TEST_ACCESS:
		failure = get(&access, user, sizeof(access)) ?: access_memory(made_up, &access);
		return failure ?: copy_to_user(user, &access, sizeof(access)) ? -EFAULT : 0;
	case MPSD_TEST_ENTRY:
		failure = get(&entry, user, sizeof(entry)) ?: read_entry(made_up, &entry);
		return failure ?: copy_to_user(user, &entry, sizeof(entry)) ? -EFAULT : 0;
	case MPSD_TEST_MAP:
	case MPSD_TEST_UNMAP:
		return get(&mapping, user, sizeof(mapping)) ?: mpsd_test_change_mappings(made_up, command, &mapping);
	case MPSD_TEST_CHANNEL_ACT:
		failure = get(&channel, user, sizeof(channel)) ?: mpsd_test_act_on_channel(made_up, &channel);
		return failure ?: copy_to_user(user, &channel, sizeof(channel)) ? -EFAULT : 0;
	default:
		return -ENOTTY;
	}
}

/* As uvm_va_space_destroy() does it: no fault can come any more, then the sink lets go, then the page tables. */
static void destroy(struct made_up *made_up)
{
	if (made_up->channel)
		mpsd_test_remove_channel(made_up);
	if (made_up->gpu_va_space.page_tables.root) {
		uvm_mpsd_release(&made_up->gpu_va_space);
		mpsd_test_unmap_all(made_up);
		uvm_page_tree_deinit(&made_up->gpu_va_space.page_tables);
	}
	if (made_up->parent && made_up->parent->isr.non_replayable_faults.handling)
		nv_kthread_q_stop(&made_up->parent->isr.kill_channel_q);
	if (made_up->uvm)
		fput(made_up->uvm);
	uvm_kvfree(made_up->gpu);
	uvm_kvfree(made_up->parent);
	uvm_kvfree(made_up);
}

/* Not before the module's exit has begun, and has had time for its steps before it waits for this. */
static void destroy_deferred(void *argument)
{
	int tries;

	for (tries = 0; THIS_MODULE->state != MODULE_STATE_GOING && tries < 100 * RM_SECONDS; tries++)
		msleep(10);
	msleep(300);
	destroy(argument);
}

/* A deferred end is as uvm_release_va_space()'s while the machine is suspended; the VA space itself has gone by then. */
static int made_up_close(struct inode *inode, struct file *file)
{
	struct made_up *made_up = file->private_data;

	complete_all(&made_up->answer);
	if (!made_up->is_deferred) {
		destroy(made_up);
		return 0;
	}
	nv_kthread_q_flush(&made_up->parent->isr.kill_channel_q); /* its stop needs the VA space */
	fput(made_up->uvm);
	made_up->uvm = NULL;
	nv_kthread_q_item_init(&made_up->deferred, destroy_deferred, made_up);
	nv_kthread_q_schedule_q_item(&g_uvm_global.deferred_release_q, &made_up->deferred);
	return 0;
}

static const struct file_operations made_up_operations = {
	.owner = THIS_MODULE,
	.release = made_up_close,
	.unlocked_ioctl = made_up_ioctl,
};

static NV_STATUS init_page_tables(struct made_up *made_up)
{
	uvm_gpu_va_space_t *gpu_va_space = &made_up->gpu_va_space;

#if defined(MPSD_HAS_BIG_PAGE_SIZE)
	return uvm_page_tree_init(made_up->gpu, gpu_va_space, UVM_PAGE_TREE_TYPE_USER, UVM_PAGE_SIZE_64K, UVM_APERTURE_SYS,
				  &gpu_va_space->page_tables);
#else
	return uvm_page_tree_init(made_up->gpu, gpu_va_space, UVM_PAGE_TREE_TYPE_USER, UVM_APERTURE_SYS,
				  &gpu_va_space->page_tables);
#endif
}

static int init_gpu(struct made_up *made_up, const struct mpsd_test_gpu *asked)
{
	uvm_parent_gpu_t *parent = made_up->parent;
	uvm_gpu_t *gpu = made_up->gpu;

	parent->gpus[0] = gpu;
	gpu->parent = parent;
	gpu->id = uvm_gpu_id_from_index(FIRST_GPU_INDEX + asked->number);
	memcpy(parent->uuid.uuid, "mpsd-made-up-00", 16);
	parent->uuid.uuid[14] += asked->number;
	parent->smc.enabled = !!asked->mig_plus_one;
	gpu->smc.swizz_id = asked->mig_plus_one ? asked->mig_plus_one - 1 : 0;
	if (fake_gpu_init_hopper(gpu) != NV_OK)
		return -EIO;
	if (asked->flags & MPSD_TEST_NO_SPARSE) {
#if defined(MPSD_HAS_SPARSE_FLAG)
		parent->sparse_mappings_supported = false;
#else
		return -EOPNOTSUPP;
#endif
	}
	if (asked->flags & MPSD_TEST_OLD)
		return 0;
	if (nv_kthread_q_init(&parent->isr.kill_channel_q, "mpsd-made-up"))
		return -ENOMEM;
	parent->isr.non_replayable_faults.handling = true;
	return 0;
}

/* `made_up` is zero; after any failure, destroy() releases it. */
static int init(struct made_up *made_up, const struct mpsd_test_gpu *asked)
{
	int failure;

	mutex_init(&made_up->bottom_half[0]);
	mutex_init(&made_up->bottom_half[1]);
	INIT_LIST_HEAD(&made_up->mappings);
	INIT_LIST_HEAD(&made_up->gpu_va_space.registered_channels);
	init_completion(&made_up->answer);
	made_up->is_deferred = asked->flags & MPSD_TEST_DEFERRED;
	made_up->uvm = fget(asked->uvm_fd);
	if (!made_up->uvm)
		return -EBADF;
	made_up->va_space = uvm_file_is_nvidia_uvm(made_up->uvm) ? uvm_fd_va_space(made_up->uvm) : NULL;
	if (!made_up->va_space)
		return -EINVAL;
	made_up->parent = uvm_kvmalloc_zero(sizeof(*made_up->parent));
	made_up->gpu = uvm_kvmalloc_zero(sizeof(*made_up->gpu));
	if (!made_up->parent || !made_up->gpu)
		return -ENOMEM;
	failure = init_gpu(made_up, asked);
	if (failure)
		return failure;
	made_up->gpu_va_space.gpu = made_up->gpu;
	made_up->gpu_va_space.va_space = made_up->va_space;
	if (init_page_tables(made_up) != NV_OK)
		return -ENOMEM;
	return asked->flags & MPSD_TEST_CHANNEL ? mpsd_test_add_channel(made_up) : 0;
}

/* A descriptor, or -errno. */
static long make_up(const struct mpsd_test_gpu *asked)
{
	struct made_up *made_up;
	int result;

	if (asked->number >= MPSD_TEST_GPUS || asked->flags & ~(MPSD_TEST_OLD | MPSD_TEST_NO_SPARSE | MPSD_TEST_CHANNEL | MPSD_TEST_DEFERRED))
		return -EINVAL;
	made_up = uvm_kvmalloc_zero(sizeof(*made_up));
	if (!made_up)
		return -ENOMEM;
	result = init(made_up, asked);
	if (!result)
		result = anon_inode_getfd("mpsd-made-up", &made_up_operations, made_up, O_RDWR | O_CLOEXEC);
	if (result < 0)
		destroy(made_up);
	return result;
}

long mpsd_selftest_ioctl(unsigned int command, void __user *user)
{
	struct mpsd_test_gpu asked;

	if (command != MPSD_TEST_GPU)
		return -ENOTTY;
	return get(&asked, user, sizeof(asked)) ?: make_up(&asked);
}
