/* SPDX-License-Identifier: MIT */
/*
 * mpsd_uvm.h: the ioctls of the open-source nvidia-uvm module that mpsd uses, and the records of its event queues.
 *
 * From uvm_ioctl.h and uvm_types.h of NVIDIA's open-gpu-kernel-modules (MIT), versions 535 to 595; the same bytes work on all
 * of them (docs/uvm.md, "Driver versions"). The number of an ioctl is passed unencoded: without direction and size.
 *
 * `status` is an NV_STATUS (nvstatuscodes.h). Write MPSD_UVM_UNANSWERED there before the call: the value stays if the driver
 * has another layout. No structure of any version is longer than MPSD_UVM_ARGUMENT_BYTES: the driver never reads beyond a
 * buffer of that size.
 */
#ifndef MPSD_UVM_H
#define MPSD_UVM_H

#ifndef MPSD_CDEF /* a binding defines it and runs `cc -E -P`: only declarations remain */
#include <stdint.h>
#ifdef __cplusplus
#define MPSD_UVM_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define MPSD_UVM_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif
#else
#define MPSD_UVM_SIZE(type, bytes)
#endif

enum {                                      /* on a descriptor of */
	MPSD_UVM_FREE = 34,                 /* /dev/nvidia-uvm: a range, and what was mapped there */
	MPSD_UVM_TOOLS_INIT_TRACKER = 56,   /* /dev/nvidia-uvm-tools, the next two too */
	MPSD_UVM_TOOLS_SET_THRESHOLD = 57,
	MPSD_UVM_TOOLS_ENABLE_EVENTS = 58,
	MPSD_UVM_CREATE_EXTERNAL_RANGE = 73, /* /dev/nvidia-uvm */
	MPSD_UVM_MAP_EXTERNAL_SPARSE = 74,  /* /dev/nvidia-uvm: in an external range alone; elsewhere it replaces live mappings */
};

enum { /* status */
	MPSD_UVM_DONE = 0x00,
	MPSD_UVM_ILLEGAL_ACTION = 0x16, /* the second descriptor is not a VA space, or one that is not set up yet */
	MPSD_UVM_INVALID_DEVICE = 0x26, /* no context on this GPU yet, or none that can do it */
	MPSD_UVM_ADDRESS_IN_USE = 0x68,
};
#define MPSD_UVM_UNANSWERED 0xffffffffu

enum {
	MPSD_UVM_ARGUMENT_BYTES = 64,
	MPSD_UVM_TRACKER_VERSION = 1,  /* of the event entries; read by 550 alone, where the others end before it */
	MPSD_UVM_DROPPED_COUNTERS = 64,
	MPSD_UVM_EVENT_GPU_FAULT = 3,
	MPSD_UVM_EVENT_FATAL_FAULT = 6,
	MPSD_UVM_PROCESSOR_CPU = 0,
	MPSD_UVM_FAULT_POISON = 15,
};

struct mpsd_uvm_range { /* CREATE_EXTERNAL_RANGE, FREE. Late versions of FREE do not have `length`; the status is in its place */
	uint64_t base;
	uint64_t length;
	uint32_t status;
	uint32_t reserved;
};
MPSD_UVM_SIZE(struct mpsd_uvm_range, 24);

struct mpsd_uvm_sparse { /* MAP_EXTERNAL_SPARSE */
	uint64_t base;
	uint64_t length;
	uint8_t gpu_uuid[16];
	uint32_t status;
	uint32_t reserved;
};
MPSD_UVM_SIZE(struct mpsd_uvm_sparse, 40);

struct mpsd_uvm_tracker { /* TOOLS_INIT_TRACKER */
	uint64_t queue;   /* address of the entries, page-aligned */
	uint64_t entries; /* a power of two; one place stays free */
	uint64_t control; /* address of a struct mpsd_uvm_control, page-aligned */
	uint8_t processor_uuid[16];
	uint32_t all_processors;
	uint32_t descriptor; /* of /dev/nvidia-uvm */
	uint32_t status;
	uint32_t version;
};
MPSD_UVM_SIZE(struct mpsd_uvm_tracker, 56);

struct mpsd_uvm_threshold { /* TOOLS_SET_THRESHOLD: how many entries wake the reader */
	uint32_t entries;
	uint32_t status;
};
MPSD_UVM_SIZE(struct mpsd_uvm_threshold, 8);

struct mpsd_uvm_events { /* TOOLS_ENABLE_EVENTS: a bit for each type */
	uint64_t flags;
	uint32_t status;
	uint32_t reserved;
};
MPSD_UVM_SIZE(struct mpsd_uvm_events, 16);

struct mpsd_uvm_control { /* a page shared with the kernel */
	uint32_t get_ahead;  /* written by us */
	uint32_t get_behind; /* written by us */
	uint32_t put_ahead;  /* written by the kernel */
	uint32_t put_behind; /* written by the kernel */
	uint64_t dropped[64]; /* written by the kernel; by event type */
};
MPSD_UVM_SIZE(struct mpsd_uvm_control, 528);

struct mpsd_uvm_entry { /* of the queue, V1 */
	uint8_t type;       /* MPSD_UVM_EVENT_... */
	uint8_t fault_type;
	uint8_t access;
	uint8_t processor;
	uint8_t reason;     /* of a fatal fault; the number of an engine in the other */
	uint8_t reserved[3];
	uint64_t address;
	uint64_t time_ns;   /* of a kernel clock that is not CLOCK_MONOTONIC */
	uint8_t rest[40];
};
MPSD_UVM_SIZE(struct mpsd_uvm_entry, 64);

#endif
