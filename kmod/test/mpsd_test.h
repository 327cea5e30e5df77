/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * How tests drive the sink: a GPU that UVM's own page-table tests make up, with the caller's real VA space on it.  Only in a
 * build with MPSD_SELFTEST; tests/kmod/guest/fake_gpu.py is the other side.
 *
 *   GPU      on /dev/mpsd-fault: makes one; returns a file descriptor for it, which takes the other commands.  Closing it does
 *            what UVM does when the GPU VA space of a client goes.
 *   ACCESS   a fatal fault on it, as its bottom half would find it
 *   ENTRY    the page table entry for an address
 *   MAP      memory mapped on it inside an external range of the VA space, as cuMemMap does
 *   UNMAP    its opposite
 *   CHANNEL  about the channel of a GPU that was made with one: lets RM answer, unregisters it; returns its state
 *
 * 0, or -errno: EINVAL for values that UVM itself could not produce.
 */
#ifndef MPSD_TEST_H
#define MPSD_TEST_H

#include <linux/ioctl.h>
#include <linux/types.h>

enum { MPSD_TEST_GPUS = 8 }; /* numbers of made-up GPUs: 0 to 7 */

enum mpsd_test_gpu_flags {
	MPSD_TEST_OLD = 1 << 0,       /* one without a queue to stop clients on, as before Volta */
	MPSD_TEST_NO_SPARSE = 1 << 1, /* a GPU without sparse entries; EOPNOTSUPP if the driver does not support such GPUs */
	MPSD_TEST_CHANNEL = 1 << 2,   /* with a channel; RM's stop of it lasts until CHANNEL ends it */
	MPSD_TEST_DEFERRED = 1 << 3,  /* its end is deferred, as in a suspend, until the module is unloaded */
};

struct mpsd_test_gpu {
	__s32 uvm_fd;      /* /dev/nvidia-uvm, initialized */
	__u32 number;      /* its UUID is "mpsd-made-up-00", the last digit this */
	__u32 mig_plus_one; /* 0: no MIG; else one more than the GPU instance */
	__u32 flags;
};
_Static_assert(sizeof(struct mpsd_test_gpu) == 16, "struct mpsd_test_gpu");

enum mpsd_test_access_flags {
	MPSD_TEST_REPLAYABLE = 1 << 0,
	MPSD_TEST_PHYSICAL = 1 << 1,
	MPSD_TEST_NO_MEMORY = 1 << 2, /* allocations of page tables fail in the meantime */
	MPSD_TEST_ABSORBED = 1 << 3,  /* the answer: UVM would not cancel it */
	MPSD_TEST_BATCH = 1 << 4,     /* UVM cancels a whole batch, and this was in it */
};

struct mpsd_test_access {
	__u64 address;
	__u64 gpu_ns;
	__u64 took_ns; /* the answer: how long uvm_mpsd_absorb() took */
	__u32 flags;
	__u16 channel;
	__u16 client_id;
	__u8 ve_id;
	__u8 gpc_id;
	__u8 client_type;
	__u8 engine_type;
	__u8 access_type; /* uvm_fault_access_type_t; records use other numbers */
	__u8 fault_type;  /* uvm_fault_type_t */
	__u8 reason;	  /* UvmEventFatalReason */
	__u8 reserved;
};
_Static_assert(sizeof(struct mpsd_test_access) == 40, "struct mpsd_test_access");

struct mpsd_test_entry {
	__u64 address;
	__u32 page_bytes; /* 4 KiB, 64 KiB or 2 MiB */
	__u32 is_there;	  /* the answer: a table that could hold it exists */
	__u64 value;	  /* the answer */
};
_Static_assert(sizeof(struct mpsd_test_entry) == 24, "struct mpsd_test_entry");

struct mpsd_test_mapping {
	__u64 address;
	__u64 bytes; /* not of UNMAP */
	__u32 page_bytes;
	__u32 reserved;
};
_Static_assert(sizeof(struct mpsd_test_mapping) == 24, "struct mpsd_test_mapping");

enum mpsd_test_channel_act { MPSD_TEST_LOOK = 0, MPSD_TEST_ANSWER = 1, MPSD_TEST_UNREGISTER = 2 };

struct mpsd_test_channel {
	__u32 act;
	__u32 is_bound; /* the answers */
	__u32 stops;    /* how often RM was asked to stop it */
	__u32 has_answered;
};
_Static_assert(sizeof(struct mpsd_test_channel) == 16, "struct mpsd_test_channel");

#define MPSD_TEST_GPU _IOW('m', 0xf0, struct mpsd_test_gpu)
#define MPSD_TEST_ACCESS _IOWR('m', 0xf1, struct mpsd_test_access)
#define MPSD_TEST_ENTRY _IOWR('m', 0xf2, struct mpsd_test_entry)
#define MPSD_TEST_MAP _IOW('m', 0xf3, struct mpsd_test_mapping)
#define MPSD_TEST_UNMAP _IOW('m', 0xf4, struct mpsd_test_mapping)
#define MPSD_TEST_CHANNEL_ACT _IOWR('m', 0xf5, struct mpsd_test_channel)

#endif
