/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * mpsd_fault.h: the interface /dev/mpsd-fault between the patched nvidia-uvm and mpsd.
 *
 * The device belongs to root, mode 0600.  Several processes may open it; each open file has its own position in one
 * ring of records, and begins at the newest.  A call that changes anything needs a descriptor that was opened for
 * writing (else EBADF) and CAP_SYS_ADMIN (else EPERM).  Numbers are in the byte order of the machine, fields lie on
 * multiples of their size, `reserved` is zero when written and ignored when read.
 *
 * read()   Whole records, as many as fit; EINVAL if the buffer is too small for one.  Without a record: EAGAIN, or it
 *          blocks.  The module does not wait for readers: a reader that falls behind by more than the ring loses the
 *          oldest records, and finds their number in `lost` of the next record it reads, with MPSD_FAULT_LOST.
 * poll()   POLLIN while a record waits.
 * ioctl()  Unknown commands ENOTTY, unknown flags or values EINVAL.
 *
 *   INFO     the first call: the version, and the length of records
 *   POLICY   the treatment of faults from now on, for all clients
 *   EXEMPT   a process with faults that take their usual way; until it ends
 *   INJECT   a made-up FAULT record of a process, for tests of readers
 *
 * Version.  Compare INFO.major first.  Another major: close the device.  The same: records may be longer than
 * this header describes, and of unknown kinds; `size` is the distance to the next.  Records never become shorter.
 * Minor 1: why GLOBAL in every mode; why FAILED and OWNER; windows of 32 MiB at most; CAP_SYS_ADMIN.
 * The numbers of commands stay the same even if their order looks odd: INFO has to be understood first.
 *
 * The records of a faulting client are FAULT, once for each fatal fault; STOPPED, when RM was asked to stop each of
 * its channels and has returned; GONE, when its GPU address space is destroyed.  FAULT comes before any process can
 * notice the consequences of the fault.
 *
 * STOPPED promises only that no channel is added.  RM does not report whether it has succeeded, and under
 * MPS work that has begun goes on, accesses memory and faults until the address space is gone.  The address space must
 * not go before that work has ended: what it accesses then is cancelled, and every client of the server is ended.
 * Prose: docs/abi.md.
 */
#ifndef MPSD_FAULT_H
#define MPSD_FAULT_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define MPSD_FAULT_NAME "mpsd-fault" /* below /dev */

#ifdef __cplusplus
#define MPSD_FAULT_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define MPSD_FAULT_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif

enum { MPSD_FAULT_MAJOR = 1, MPSD_FAULT_MINOR = 1 };

enum mpsd_fault_kind {
	MPSD_FAULT_KIND_FAULT = 1,
	MPSD_FAULT_KIND_STOPPED = 2,
	MPSD_FAULT_KIND_GONE = 3,
};

enum mpsd_fault_action {
	MPSD_FAULT_CANCELLED = 0, /* as without the patch: every client of the server loses its context */
	MPSD_FAULT_SUNK = 1,      /* sparse memory was mapped there, and the access repeated: no process noticed */
	MPSD_FAULT_ALREADY = 2,   /* the same, in a window that an earlier fault had made */
};

enum mpsd_fault_why { /* it was cancelled */
	MPSD_FAULT_WHY_NONE = 0,
	MPSD_FAULT_WHY_POLICY = 1,        /* absorbing is not asked for */
	MPSD_FAULT_WHY_TYPE = 2,          /* no mapping would help this type of fault */
	MPSD_FAULT_WHY_PHYSICAL = 3,      /* of a physical address */
	MPSD_FAULT_WHY_UNADDRESSABLE = 4, /* beyond what the GPU can address */
	MPSD_FAULT_WHY_MANAGED = 5,       /* in managed memory */
	MPSD_FAULT_WHY_BUSY = 6,          /* something is mapped in the same 4 KiB, or is being mapped */
	MPSD_FAULT_WHY_BUDGET = 7,        /* max_windows are used */
	MPSD_FAULT_WHY_MEMORY = 8,        /* no memory for page tables */
	MPSD_FAULT_WHY_EXEMPT = 9,
	MPSD_FAULT_WHY_GLOBAL = 10,       /* UVM cancels all that is pending: no proof against `tgid` */
	MPSD_FAULT_WHY_RESERVED = 11,     /* where the driver or the GPU's firmware keeps its own */
	MPSD_FAULT_WHY_UNSUPPORTED = 12,  /* the GPU does not support sparse memory, or is older than Volta */
	MPSD_FAULT_WHY_INEFFECTIVE = 13,  /* it faults again and again where a window is */
	MPSD_FAULT_WHY_SHARED = 14,       /* its address space is that of several processes */
	MPSD_FAULT_WHY_FAILED = 15,       /* page tables could not be written: the GPU does not do what UVM asks it */
	MPSD_FAULT_WHY_OWNER = 16,        /* the owner of the address space cannot be determined */
};

enum mpsd_fault_flags {
	MPSD_FAULT_REPLAYABLE = 1 << 0,
	MPSD_FAULT_INJECTED = 1 << 1,
	MPSD_FAULT_FIRST = 1 << 2, /* of this client: it is being stopped from here on */
	MPSD_FAULT_LOST = 1 << 3,  /* `lost` records were overwritten before this one */
};

struct mpsd_fault_record {
	__u16 size; /* of this record, a multiple of 8 */
	__u8 major;
	__u8 kind;
	__u32 flags;
	__u64 sequence;       /* from 1, of the ring */
	__u64 monotonic_ns;   /* CLOCK_MONOTONIC */
	__u64 gpu_ns;         /* of the GPU's own clock, when it noticed */
	__u64 address;        /* the page, 4 KiB */
	__u64 window_base;    /* what was mapped; 0: nothing */
	__u64 window_bytes;
	__u64 start_ns;       /* when the process began, CLOCK_BOOTTIME: its pid may be used again */
	__u8 gpu_uuid[16];
	__s32 tgid;           /* in the first pid namespace; 0: not known */
	__u32 uid;            /* in the first user namespace */
	__u32 lost;
	__u16 channel;
	__u16 client_id;      /* of the fault packet */
	__u8 ve_id;
	__u8 gpc_id;
	__u8 client_type;     /* 0 GPC, 1 HUB */
	__u8 engine_type;     /* 0 graphics and compute, 1 host, 2 copy */
	__u8 access_type;     /* UvmEventMemoryAccessType: 1 read, 2 write, 3 atomic, 4 prefetch */
	__u8 fault_type;      /* UvmEventFaultType */
	__u8 reason;          /* UvmEventFatalReason */
	__u8 action;
	__u8 why;
	__u8 gpu_instance;    /* with MIG: NVML's GPU instance id and one; 0: no MIG */
	__u8 reserved[6];
	char comm[16];        /* ended by NUL */
};
MPSD_FAULT_SIZE(struct mpsd_fault_record, 128);

struct mpsd_fault_info {
	__u32 major;
	__u32 record_bytes;
	__u32 ring_records;
	__u32 minor;
	__u64 sequence;  /* of the newest record */
	char driver[24]; /* the version of nvidia-uvm, ended by NUL */
};
MPSD_FAULT_SIZE(struct mpsd_fault_info, 48);

enum mpsd_fault_mode {
	MPSD_FAULT_OFF = 0,       /* as without the patch */
	MPSD_FAULT_REPORT = 1,    /* the same, with records */
	MPSD_FAULT_SINK = 2,      /* absorb, and stop the client's channels */
	MPSD_FAULT_SINK_KILL = 3, /* and SIGKILL its process */
};

/*
 * Entries are written while every fault of the GPU waits: 0.1 ms for so much, where 1 GiB took 3.5 ms (H200, by ioctl).
 */
#define MPSD_FAULT_WINDOW_MAX (32u << 20)

struct mpsd_fault_policy {
	__u32 mode;
	__u32 max_windows;  /* of one client; its next fault is cancelled */
	__u64 window_bytes; /* a power of two, 64 KiB to MPSD_FAULT_WINDOW_MAX */
};
MPSD_FAULT_SIZE(struct mpsd_fault_policy, 16);

struct mpsd_fault_target {
	__s32 tgid; /* as the caller sees it */
	__u32 flags; /* none yet */
	__u64 address; /* of INJECT */
};
MPSD_FAULT_SIZE(struct mpsd_fault_target, 16);

#define MPSD_FAULT_INFO _IOR('m', 0xe0, struct mpsd_fault_info)
#define MPSD_FAULT_POLICY _IOW('m', 0xe1, struct mpsd_fault_policy)
#define MPSD_FAULT_EXEMPT _IOW('m', 0xe2, struct mpsd_fault_target)
#define MPSD_FAULT_INJECT _IOW('m', 0xe3, struct mpsd_fault_target)

#endif
