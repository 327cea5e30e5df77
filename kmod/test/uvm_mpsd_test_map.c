// SPDX-License-Identifier: MIT OR GPL-2.0
/* Memory that is mapped on a made-up GPU, as cuMemMap and cuMemSetAccess make it. */
#include <linux/slab.h>

#include "uvm_map_external.h"
#include "uvm_mpsd_test_made_up.h"

struct mapping {
	struct list_head node;
	uvm_ext_gpu_range_tree_t *tree; /* its range's; it stays, as UVM_FREE is not called while this is there */
	uvm_ext_gpu_map_t map;
};

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

int mpsd_test_change_mappings(struct made_up *made_up, unsigned int command, const struct mpsd_test_mapping *asked)
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

void mpsd_test_unmap_all(struct made_up *made_up)
{
	struct mapping *mapping, *next;

	if (list_empty(&made_up->mappings))
		return; /* the VA space may have gone */
	uvm_va_space_down_write(made_up->va_space);
	list_for_each_entry_safe(mapping, next, &made_up->mappings, node)
		unmap(mapping);
	uvm_va_space_up_write(made_up->va_space);
}
