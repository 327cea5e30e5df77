/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Where driver versions differ.  uvm_mpsd.Kbuild looks into the tree for each of MPSD_HAS_*; no code asks for a version.
 *
 *                              535    550    570    580    590    595
 *   MPSD_HAS_EXTERNAL_RANGE     -      -      x      x      x      x    external ranges have a type of their own
 *   MPSD_HAS_BIG_PAGE_SIZE      x      x      x      x      x      -    page trees of tests take the size of big pages
 *   MPSD_HAS_SPARSE_FLAG        x      x      x      x      x      -    some GPUs have no sparse entries; 595 does not support those
 *   MPSD_HAS_CC_VIOLATION       -      -      x      x      x      x    a type of fault
 *   MPSD_HAS_IS_ACCESSIBLE      -      -      -      -      x      -    RM does not get the channels of a GPU that is unplugged
 */
#ifndef UVM_MPSD_COMPAT_H
#define UVM_MPSD_COMPAT_H

#include "uvm_gpu.h"
#include "uvm_hmm.h"
#include "uvm_map_external.h"
#include "uvm_va_range.h"
#include "uvm_va_space.h"

#if defined(MPSD_HAS_EXTERNAL_RANGE)
typedef uvm_va_range_external_t mpsd_external_range_t;
#else
typedef uvm_va_range_t mpsd_external_range_t;
#endif

/* `range` is of UVM_VA_RANGE_TYPE_EXTERNAL. */
static inline mpsd_external_range_t *mpsd_external_range(uvm_va_range_t *range)
{
#if defined(MPSD_HAS_EXTERNAL_RANGE)
	return uvm_va_range_to_external(range);
#else
	return range;
#endif
}

/* Whether HMM, which keeps its blocks outside the tree of ranges, has none in [start, end]. Takes and drops a leaf lock. */
static inline bool mpsd_hmm_is_empty(uvm_va_space_t *va_space, NvU64 start, NvU64 end)
{
#if UVM_IS_CONFIG_HMM()
	bool is_empty;

	if (!uvm_hmm_is_enabled(va_space))
		return true;
	uvm_mutex_lock(&va_space->hmm.blocks_lock);
	is_empty = !uvm_range_tree_iter_first(&va_space->hmm.blocks, start, end);
	uvm_mutex_unlock(&va_space->hmm.blocks_lock);
	return is_empty;
#else
	return true;
#endif
}

static inline bool mpsd_has_sparse(const uvm_gpu_t *gpu)
{
#if defined(MPSD_HAS_SPARSE_FLAG)
	return gpu->parent->sparse_mappings_supported;
#else
	return true;
#endif
}

static inline bool mpsd_is_accessible(const uvm_gpu_t *gpu)
{
#if defined(MPSD_HAS_IS_ACCESSIBLE)
	return uvm_parent_gpu_is_accessible(gpu->parent);
#else
	return true;
#endif
}

/* NVML's GPU instance id and one; 0: no MIG. */
static inline u8 mpsd_gpu_instance(uvm_gpu_t *gpu)
{
	return gpu->parent->smc.enabled ? (u8)(gpu->smc.swizz_id + 1) : 0;
}

#endif
