// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Drives the sink without a GPU, on the one that upstream's test of page tables makes up: real page tables in system memory,
 * no copy engine, no interrupts.  What the sink asks of the VA space (ranges, owner, locks) is the caller's real one.
 *
 * Each made-up GPU is a file; as long as it is open its VA space's file is too.  Locks, outermost first: `bottom_half`, the
 * VA space's, a range's tree of mappings.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

/* The made-up GPU is static there. */
#define uvm_test_page_tree mpsd_test_unused
#include "uvm_page_tree_test.c"
#undef uvm_test_page_tree

#include "mpsd_test.h"
#include "uvm_mpsd.h"
#include "uvm_mpsd_compat.h"
#include "uvm_mpsd_selftest.h"

#define FIRST_GPU_INDEX 16 /* in a VA space's tables of GPUs; there are 32 places at least, and here none is real */

struct made_up {
	struct file *uvm; /* a reference */
	uvm_va_space_t *va_space;
	uvm_parent_gpu_t *parent;
	uvm_gpu_t *gpu;
	uvm_gpu_va_space_t gpu_va_space;
	struct mutex bottom_half[2]; /* [is_replayable]: UVM serves each kind of fault one at a time, both kinds at once */
	bool has_no_memory;	     /* written under bottom_half[] by who makes the access, and read in it */
	struct list_head mappings;   /* under the VA space's lock, for writing */
};

struct mapping {
	struct list_head node;
	uvm_ext_gpu_range_tree_t *tree; /* its range's; it stays, as UVM_FREE is not called while this is there */
	uvm_ext_gpu_map_t map;
};

typedef typeof(((uvm_page_table_range_vec_t *)0)->page_size) page_bytes_t;

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

/* The table that holds entries for pages of this size at `address`, and which of its entries; NULL: there is none. */
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

/* As if `address` and what follows were read-only memory of the host, one page after the other. */
static NvU64 read_only_entry(uvm_page_table_range_vec_t *entries, NvU64 offset, void *unused)
{
	return entries->tree->hal->make_pte(UVM_APERTURE_SYS, SZ_2M + offset, UVM_PROT_READ_ONLY, UVM_MMU_PTE_FLAGS_NONE);
}

static int fill_mapping(struct made_up *made_up, struct mapping *mapping, const struct mpsd_test_mapping *asked)
{
	uvm_page_table_range_vec_t *entries = &mapping->map.pt_range_vec;
	int result = -EEXIST;

	if (uvm_page_table_range_vec_init(&made_up->gpu_va_space.page_tables, asked->address, asked->bytes, asked->page_bytes,
					  UVM_PMM_ALLOC_FLAGS_NONE, entries) != NV_OK)
		return -ENOMEM;
	uvm_mutex_lock(&mapping->tree->lock);
	mapping->map.gpu = made_up->gpu;
	mapping->map.node.start = asked->address;
	mapping->map.node.end = asked->address + asked->bytes - 1;
	if (uvm_range_tree_add(&mapping->tree->tree, &mapping->map.node) == NV_OK)
		result = uvm_page_table_range_vec_write_ptes(entries, UVM_MEMBAR_SYS, read_only_entry, NULL) == NV_OK ? 0 : -EIO;
	uvm_mutex_unlock(&mapping->tree->lock);
	if (result == -EEXIST)
		uvm_page_table_range_vec_deinit(entries);
	return result;
}

/* The VA space's lock is held. */
static int map(struct made_up *made_up, const struct mpsd_test_mapping *asked)
{
	uvm_va_range_t *range = uvm_va_range_find(made_up->va_space, asked->address);
	struct mapping *mapping;
	int failure;

	if (!range || range->type != UVM_VA_RANGE_TYPE_EXTERNAL || asked->address + asked->bytes - 1 > range->node.end)
		return -ENXIO;
	mapping = kzalloc(sizeof(*mapping), GFP_KERNEL);
	if (!mapping)
		return -ENOMEM;
	mapping->tree = uvm_ext_gpu_range_tree(mpsd_external_range(range), made_up->gpu);
	failure = fill_mapping(made_up, mapping, asked);
	if (failure && failure != -EIO)
		kfree(mapping);
	else
		list_add(&mapping->node, &made_up->mappings);
	return failure;
}

/* The VA space's lock is held.  Takes `mapping`. */
static void unmap(struct mapping *mapping)
{
	list_del(&mapping->node);
	uvm_mutex_lock(&mapping->tree->lock);
	uvm_range_tree_remove(&mapping->tree->tree, &mapping->map.node);
	(void)uvm_page_table_range_vec_clear_ptes(&mapping->map.pt_range_vec, UVM_MEMBAR_SYS);
	uvm_page_table_range_vec_deinit(&mapping->map.pt_range_vec);
	uvm_mutex_unlock(&mapping->tree->lock);
	kfree(mapping);
}

static int unmap_at(struct made_up *made_up, NvU64 address)
{
	struct mapping *mapping;

	list_for_each_entry(mapping, &made_up->mappings, node) {
		if (mapping->map.node.start == address) {
			unmap(mapping);
			return 0;
		}
	}
	return -ENXIO;
}

static int change_mappings(struct made_up *made_up, unsigned int command, const struct mpsd_test_mapping *asked)
{
	page_bytes_t page_bytes = asked->page_bytes;
	int result;

	if (command == MPSD_TEST_MAP &&
	    (!is_power_of_2(page_bytes) || !(page_bytes & made_up->gpu_va_space.page_tables.hal->page_sizes()) || !asked->bytes ||
	     !IS_ALIGNED(asked->address | asked->bytes, page_bytes)))
		return -EINVAL;
	uvm_va_space_down_write(made_up->va_space);
	result = command == MPSD_TEST_MAP ? map(made_up, asked) : unmap_at(made_up, asked->address);
	uvm_va_space_up_write(made_up->va_space);
	return result;
}

static long made_up_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct made_up *made_up = file->private_data;
	void __user *user = (void __user *)argument;
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
		return get(&mapping, user, sizeof(mapping)) ?: change_mappings(made_up, command, &mapping);
	default:
		return -ENOTTY;
	}
}

/* As uvm_va_space_destroy() does it: no fault can come any more, then the sink lets go, then the page tables. */
static void destroy(struct made_up *made_up)
{
	struct mapping *mapping, *next;

	if (made_up->gpu_va_space.page_tables.root) {
		uvm_mpsd_release(&made_up->gpu_va_space);
		uvm_va_space_down_write(made_up->va_space);
		list_for_each_entry_safe(mapping, next, &made_up->mappings, node)
			unmap(mapping);
		uvm_va_space_up_write(made_up->va_space);
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

static int made_up_close(struct inode *inode, struct file *file)
{
	destroy(file->private_data);
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
	if (asked->flags & MPSD_TEST_NO_SPARSE)
		parent->sparse_mappings_supported = false;
	if (asked->flags & MPSD_TEST_OLD)
		return 0;
	if (nv_kthread_q_init(&parent->isr.kill_channel_q, "mpsd-made-up"))
		return -ENOMEM;
	parent->isr.non_replayable_faults.handling = true;
	return 0;
}

/* `made_up` is zero; whatever fails, destroy() undoes. */
static int init(struct made_up *made_up, const struct mpsd_test_gpu *asked)
{
	int failure;

	mutex_init(&made_up->bottom_half[0]);
	mutex_init(&made_up->bottom_half[1]);
	INIT_LIST_HEAD(&made_up->mappings);
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
	return init_page_tables(made_up) == NV_OK ? 0 : -ENOMEM;
}

/* A descriptor, or -errno. */
static long make_up(const struct mpsd_test_gpu *asked)
{
	struct made_up *made_up;
	int result;

	if (asked->number >= MPSD_TEST_GPUS || asked->flags & ~(MPSD_TEST_OLD | MPSD_TEST_NO_SPARSE))
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
