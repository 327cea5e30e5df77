/* The calls of the real /dev/nvidia-uvm that the simulator answers, as the open module lays them out. */
#ifndef MPSD_SIM_UVM_CALLS_H
#define MPSD_SIM_UVM_CALLS_H

#include <assert.h>
#include <stdint.h>

enum uvm_call { UVM_FREE = 34, UVM_CREATE_RANGE = 73, UVM_MAP_SPARSE = 74 };
enum uvm_status {
	UVM_DONE = 0x00,
	UVM_INVALID_ADDRESS = 0x1e,
	UVM_INVALID_DEVICE = 0x26,
	UVM_NO_MEMORY = 0x51,
	UVM_ADDRESS_IN_USE = 0x68,
};

struct uvm_range_call { /* of FREE and CREATE_RANGE */
	uint64_t base, length;
	uint32_t status; /* what comes back */
	uint32_t reserved;
};
struct uvm_sparse_call {
	uint64_t base, length;
	unsigned char uuid[16]; /* of the GPU */
	uint32_t status;
	uint32_t reserved;
};
static_assert(sizeof(struct uvm_range_call) == 24 && sizeof(struct uvm_sparse_call) == 40, "the module's layout");

#endif
