/* The stand-in for a client's /dev/nvidia-uvm: its address space, and the queue of its tool events.
 *
 *   MPSD_SIM_DIR/uvm/PID.space    this page; the client holds flock(LOCK_EX) on it.  A duplicate of the descriptor in another
 *                                 process keeps the lock beyond the client's death, as it keeps the real address space.
 *   MPSD_SIM_DIR/uvm/PID.control  an empty file that stands for /dev/nvidiactl, the driver's objects of the client; it is locked
 *                                 likewise, and opened last, so that the end of a process closes it after the space
 *   MPSD_SIM_DIR/uvm/PID.events   a FIFO: one struct uvm_entry for each event, laid out as the real queue's entries of version 1
 *
 * A client has all open from cuInit on, close-on-exec.  Little endian; each field is read and written whole.
 * Prose: docs/simulator.md, "UVM". */
#ifndef MPSD_SIM_UVM_SPACE_H
#define MPSD_SIM_UVM_SPACE_H

#include <assert.h>
#include <stdint.h>

enum { UVM_SPACE_MAGIC = 0x534d5655, UVM_SPACE_VERSION = 1, UVM_SPACE_BYTES = 4096, UVM_SPACE_RANGES = 64 };

struct uvm_range { /* the listener writes, the driver reads */
	uint64_t base;
	uint64_t length;
	uint64_t is_sparse; /* not 0: reads give 0, writes vanish; may be set after the range is there */
};

struct uvm_space {
	uint32_t magic;       /* driver, once */
	uint32_t version;     /* driver, once */
	uint32_t attached;    /* listener: 1 while it wants events; driver, acquire */
	uint32_t registered;  /* driver, release: 1 from the first context on; no sparse mapping before that */
	uint64_t dropped;     /* driver, atomic: events that found the FIFO full, or were lost on request */
	uint32_t range_count; /* listener, release, after the ranges; driver, acquire */
	uint32_t reserved;    /* 0 */
	struct uvm_range ranges[UVM_SPACE_RANGES];
};
static_assert(sizeof(struct uvm_space) == 1568 && sizeof(struct uvm_space) <= UVM_SPACE_BYTES, "struct uvm_space");

enum uvm_event { UVM_GPU_FAULT = 3, UVM_FATAL_FAULT = 6 };
enum uvm_fault { UVM_FAULT_INVALID_PDE = 1, UVM_FAULT_WRITE = 3 };
enum uvm_access { UVM_READ = 1, UVM_WRITE = 2, UVM_ATOMIC = 3 };

struct uvm_entry {
	uint8_t event;
	uint8_t fault;
	uint8_t access;
	uint8_t processor; /* of FATAL_FAULT and GPU_FAULT: the GPU, 1 for the first */
	uint8_t reason;    /* of GPU_FAULT: the low byte of the GPC */
	uint8_t reserved;
	uint16_t client;   /* of GPU_FAULT alone */
	uint64_t address;
	uint64_t time_ns;  /* CLOCK_MONOTONIC */
	uint64_t unused[5];
};
static_assert(sizeof(struct uvm_entry) == 64, "struct uvm_entry");

#endif
