// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Windows of sparse entries. Makes only the calls that uvm_map_external_sparse_on_gpu() makes.
 *
 * A window is recorded only in the reference counts of its page-table entries: the client may map memory over it later, and
 * then has that memory there, or loses it; the page tables belong to this client alone.
 */
#include <linux/ktime.h>
#include <linux/minmax.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "uvm_mpsd_compat.h"
#include "uvm_mpsd_window.h"

/* An access in flight when a window was laid is replayed within this time; measured values are a tenth. */
#define SETTLE_NS (10 * NSEC_PER_MSEC)
/* Then the entries are written again, at most this often: they do not help an access that still faults. */
#define RENEWALS_MAX 64

/*
 * RM, in the GPU's firmware, can have page tables for a part of a VA space that UVM does not know: a table written there by
 * this module would replace them (gpu_vaspace.c of the open modules: SPLIT_VAS_SERVER_RM_MANAGED_VA_START, _SIZE). In a VA
 * space that begins above this part, the part is elsewhere (gvaspaceReserveSplitVaSpace(), `vasStart`), and UVM does not learn
 * where. UVM meets neither: RM hands over externally owned VA spaces alone (nvGpuOpsDupAddressSpace(): NV_ERR_INVALID_FLAGS),
 * and those have no such part (vaspace_api.c: DISABLE_SPLIT_VAS). The module leaves this part out nevertheless, since that
 * costs nothing.
 */
#define FIRMWARE_START SZ_4G
#define FIRMWARE_END (FIRMWARE_START + SZ_512M - 1)

/* A place for a window.  range: NULL in a hole.  map: NULL unless `address` is mapped; borrowed under its
 * tree's lock.
 */
struct place {
	uvm_gpu_va_space_t *gpu_va_space;
	NvU64 address;
	mpsd_external_range_t *range;
	NvU64 range_start, range_end;
	uvm_ext_gpu_map_t *map;
};

struct span {
	NvU64 start, bytes;
	u32 page_bytes;
};

static NvU64 sparse_entry(uvm_page_table_range_vec_t *entries, NvU64 offset, void *unused)
{
	return entries->tree->hal->make_sparse_pte();
}

static bool is_in_hole(const struct place *place, NvU64 start, NvU64 end)
{
	uvm_va_space_t *va_space = place->gpu_va_space->va_space;

	return uvm_va_space_range_empty(va_space, start, end) && mpsd_hmm_is_empty(va_space, start, end);
}

/* If `range` is set, the caller holds the lock of its tree of mappings. */
static bool fits(const struct place *place, NvU64 start, NvU64 end)
{
	if (!uvm_gpu_can_address(place->gpu_va_space->gpu, start, end - start + 1))
		return false;
	if (start <= FIRMWARE_END && end >= FIRMWARE_START)
		return false;
	if (!place->range)
		return is_in_hole(place, start, end);
	if (start < place->range_start || end > place->range_end)
		return false;
	if (place->map)
		return start >= place->map->node.start && end <= place->map->node.end;
	return !uvm_ext_gpu_map_iter_first(place->range, place->gpu_va_space->gpu, start, end);
}

static enum mpsd_fault_why why_nothing_fits(const struct place *place)
{
	NvU64 page = ALIGN_DOWN(place->address, SZ_4K);

	if (!uvm_gpu_can_address(place->gpu_va_space->gpu, page, SZ_4K))
		return MPSD_FAULT_WHY_UNADDRESSABLE;
	if (page >= FIRMWARE_START && page <= FIRMWARE_END)
		return MPSD_FAULT_WHY_RESERVED;
	return MPSD_FAULT_WHY_BUSY;
}

/*
 * UVM promises 64 KiB pages for sparse entries; such an entry hides 4 KiB pages mapped below it, so next to such pages the
 * window has 4 KiB pages.  In a mapping it has the mapping's pages: its entries are what the GPU sees.
 */
static enum mpsd_fault_why choose(const struct place *place, NvU64 most_bytes, struct span *span)
{
	NvU64 least_bytes = place->map ? place->map->pt_range_vec.page_size : SZ_4K;
	NvU64 bytes;

	for (bytes = max_t(NvU64, most_bytes, least_bytes); bytes >= least_bytes; bytes >>= 1) {
		NvU64 start = ALIGN_DOWN(place->address, bytes);

		if (!fits(place, start, start + bytes - 1))
			continue;
		span->start = start;
		span->bytes = bytes;
		if (place->map)
			span->page_bytes = least_bytes;
		else
			span->page_bytes = bytes >= UVM_PAGE_SIZE_64K ? UVM_PAGE_SIZE_64K : UVM_PAGE_SIZE_4K;
		return MPSD_FAULT_WHY_NONE;
	}
	return why_nothing_fits(place);
}

/* Writes the entries and invalidates the GPU's old ones.  Waits for the GPU's copy engine. */
static NV_STATUS write_entries(struct mpsd_window *window)
{
	NV_STATUS status = uvm_page_table_range_vec_write_ptes(window->entries, UVM_MEMBAR_SYS, sparse_entry, NULL);

	window->laid_ns = ktime_get_ns();
	return status;
}

static enum mpsd_fault_why lay(uvm_gpu_va_space_t *gpu_va_space, const struct span *span, struct mpsd_window **made)
{
	struct mpsd_window *window = kzalloc(sizeof(*window), NV_UVM_GFP_FLAGS | __GFP_NOWARN);

	if (!window)
		return MPSD_FAULT_WHY_MEMORY;
	window->start = span->start;
	window->end = span->start + span->bytes - 1;
	if (uvm_page_table_range_vec_create(&gpu_va_space->page_tables, span->start, span->bytes, span->page_bytes,
					    UVM_PMM_ALLOC_FLAGS_EVICT, &window->entries) != NV_OK) {
		kfree(window);
		return MPSD_FAULT_WHY_MEMORY;
	}
	if (write_entries(window) != NV_OK) {
		mpsd_window_lift(window);
		return MPSD_FAULT_WHY_FAILED;
	}
	*made = window;
	return MPSD_FAULT_WHY_NONE;
}

static enum mpsd_fault_why lay_at(const struct place *place, NvU64 bytes, struct mpsd_window **window)
{
	struct span span;
	enum mpsd_fault_why why = choose(place, bytes, &span);

	return why ? why : lay(place->gpu_va_space, &span, window);
}

/*
 * `place->range` is external: memory that CUDA allocates, maps and imports.  The function holds its lock until the entries are
 * written, so that no mapping is made there before.
 */
static enum mpsd_fault_why lay_in_range(struct place *place, NvU64 bytes, struct mpsd_window **window)
{
	uvm_gpu_t *gpu = place->gpu_va_space->gpu;
	uvm_ext_gpu_range_tree_t *tree = uvm_ext_gpu_range_tree(place->range, gpu);
	enum mpsd_fault_why why;

	uvm_mutex_lock(&tree->lock);
	place->map = uvm_ext_gpu_map_iter_first(place->range, gpu, place->address, place->address);
	if (place->map && (!place->map->pt_range_vec.ranges || place->map->pt_range_vec.page_size > UVM_PAGE_SIZE_2M))
		why = MPSD_FAULT_WHY_BUSY; /* being mapped now, or in pages for which sparse was not tried */
	else
		why = lay_at(place, bytes, window);
	uvm_mutex_unlock(&tree->lock);
	return why;
}

enum mpsd_fault_why mpsd_window_lay(uvm_gpu_va_space_t *gpu_va_space, NvU64 address, NvU64 bytes, struct mpsd_window **window)
{
	struct place place = { .gpu_va_space = gpu_va_space, .address = address };
	uvm_va_range_t *range;

	uvm_assert_rwsem_locked(&gpu_va_space->va_space->lock);
	if (!mpsd_has_sparse(gpu_va_space->gpu))
		return MPSD_FAULT_WHY_UNSUPPORTED;
	range = uvm_va_range_find(gpu_va_space->va_space, address);
	if (!range)
		return lay_at(&place, bytes, window);
	if (range->type == UVM_VA_RANGE_TYPE_MANAGED)
		return MPSD_FAULT_WHY_MANAGED;
	if (range->type != UVM_VA_RANGE_TYPE_EXTERNAL)
		return MPSD_FAULT_WHY_RESERVED; /* the driver's own: contexts and the like */
	place.range = mpsd_external_range(range);
	place.range_start = range->node.start;
	place.range_end = range->node.end;
	return lay_in_range(&place, bytes, window);
}

enum mpsd_fault_why mpsd_window_renew(struct mpsd_window *window)
{
	if (ktime_get_ns() - window->laid_ns < SETTLE_NS)
		return MPSD_FAULT_WHY_NONE;
	if (++window->renewals > RENEWALS_MAX)
		return MPSD_FAULT_WHY_INEFFECTIVE;
	return write_entries(window) == NV_OK ? MPSD_FAULT_WHY_NONE : MPSD_FAULT_WHY_FAILED;
}

void mpsd_window_lift(struct mpsd_window *window)
{
	(void)uvm_page_table_range_vec_clear_ptes(window->entries, UVM_MEMBAR_NONE); /* no access can reach them any longer */
	uvm_page_table_range_vec_destroy(window->entries);
	kfree(window);
}
