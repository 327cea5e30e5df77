/* SPDX-License-Identifier: MIT */
/*
 * mpsd_rm.h: the calls of NVIDIA's resource manager (RM) that mpsd-sentinel makes on /dev/nvidiactl.
 *
 * From nvos.h, nv-ioctl.h, rs_access.h, class/cl0005.h, cl0080.h, cl83de.h, ctrl0000client.h and ctrl83dedebug.h of NVIDIA's
 * open-gpu-kernel-modules (MIT). The structures and numbers below are the same bytes in 535.288.01, 545.29.06, 550.163.01,
 * 555.58.02, 560.35.03, 565.77, 570.211.01, 575.64.05, 580.142, 590.48.01 and 595.45.04 (compared as text). Only driver 580 was
 * run. The class ids of GET_CHILD_HANDLE are internal to RM; they have been the same in all of these versions.
 *
 * The ioctl number is _IOC(_IOC_READ | _IOC_WRITE, 'F', MPSD_RM_..., sizeof of the structure). `status` is an NV_STATUS.
 */
#ifndef MPSD_RM_H
#define MPSD_RM_H

#include <stdint.h>

#define MPSD_RM_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)

enum { /* ioctls */
	MPSD_RM_CONTROL = 0x2a,
	MPSD_RM_ALLOC = 0x2b,
	MPSD_RM_SHARE = 0x35,
	MPSD_RM_ALLOC_OS_EVENT = 206,
};

enum { /* external classes */
	MPSD_RM_CLASS_CLIENT = 0x41,
	MPSD_RM_CLASS_OS_EVENT = 0x79,
	MPSD_RM_CLASS_DEVICE = 0x80,
	MPSD_RM_CLASS_DEBUGGER = 0x83de,
};

enum { MPSD_RM_CHILD_DEVICE = 0xe0ac20 }; /* internal class id, for GET_CHILD_HANDLE */

enum { /* controls: of a client, then of a debugger session */
	MPSD_RM_GET_HANDLE_INFO = 0xd02,
	MPSD_RM_GET_CHILD_HANDLE = 0xd05,
	MPSD_RM_READ_ALL_SM_ERRORS = 0x83de030c,
	MPSD_RM_RESUME_CONTEXT = 0x83de0318, /* no parameters */
};

enum { /* status */
	MPSD_RM_DONE = 0x00,
	MPSD_RM_NO_PERMISSION = 0x1b,
	MPSD_RM_BAD_ARGUMENT = 0x1f,
	MPSD_RM_NO_OBJECT = 0x57,
};

enum {
	MPSD_RM_FIRST_CLIENT = 0xc1d00000u, /* handles of clients are this number plus a count of 20 bits */
	MPSD_RM_INFO_CLASS = 2,             /* GET_HANDLE_INFO: the external class */
	MPSD_RM_ACCESS_DEBUG = 1 << 2,
	MPSD_RM_SHARE_WITH_CLIENT = 3,
	MPSD_RM_SHARE_ADD = 1 << 2,
	MPSD_RM_EVENT_SM_EXCEPTION = 1,              /* the notifier of a compute object (measured on 580) */
	MPSD_RM_EVENT_WITHOUT_DATA = 0x10000000,     /* or'ed to it: poll(2) reports the event and clears it */
	MPSD_RM_SMS_PER_CALL = 100,
	MPSD_RM_SM_PAUSED = 0x20, /* of global_esr: a warp is paused: after its trap, or since another warp of the SM failed */
};

struct mpsd_rm_control {
	uint32_t client;
	uint32_t object;
	uint32_t command;
	uint32_t flags;
	uint64_t parameters; /* address */
	uint32_t parameters_size;
	uint32_t status;
};
MPSD_RM_SIZE(struct mpsd_rm_control, 32);

struct mpsd_rm_alloc {
	uint32_t client;
	uint32_t parent;
	uint32_t object; /* the new one; in: the wanted handle, or 0 */
	uint32_t class_id;
	uint64_t parameters; /* address */
	uint32_t parameters_size;
	uint32_t status;
};
MPSD_RM_SIZE(struct mpsd_rm_alloc, 32);

struct mpsd_rm_share {
	uint32_t client;
	uint32_t object;
	uint32_t target; /* the client that gets the rights */
	uint32_t rights;
	uint16_t type;
	uint8_t action;
	uint8_t reserved;
	uint32_t status;
};
MPSD_RM_SIZE(struct mpsd_rm_share, 24);

struct mpsd_rm_os_event { /* ALLOC_OS_EVENT: makes a descriptor of /dev/nvidiactl ready for events of `client` */
	uint32_t client;
	uint32_t device;
	uint32_t descriptor;
	uint32_t status;
};
MPSD_RM_SIZE(struct mpsd_rm_os_event, 16);

struct mpsd_rm_event { /* parameters of class OS_EVENT */
	uint32_t client; /* of `source` */
	uint32_t source;
	uint32_t class_id;
	uint32_t index;
	uint64_t descriptor;
};
MPSD_RM_SIZE(struct mpsd_rm_event, 24);

struct mpsd_rm_device { /* parameters of class DEVICE */
	uint32_t instance;
	uint32_t share_client;
	uint32_t target_client;
	uint32_t target_device;
	uint32_t flags;
	uint32_t reserved;
	uint64_t space_bytes;
	uint64_t space_start;
	uint64_t space_limit;
	uint32_t space_mode;
	uint32_t reserved_too;
};
MPSD_RM_SIZE(struct mpsd_rm_device, 56);

struct mpsd_rm_debugger { /* parameters of class DEBUGGER */
	uint32_t obsolete; /* 0 */
	uint32_t client;
	uint32_t compute_object;
};
MPSD_RM_SIZE(struct mpsd_rm_debugger, 12);

struct mpsd_rm_handle_info {
	uint32_t object;
	uint32_t index;
	uint64_t value;
};
MPSD_RM_SIZE(struct mpsd_rm_handle_info, 16);

struct mpsd_rm_child {
	uint32_t parent;
	uint32_t class_id;
	uint32_t object; /* out; 0: none */
};
MPSD_RM_SIZE(struct mpsd_rm_child, 12);

struct mpsd_rm_sm_error {
	uint32_t global_esr;
	uint32_t warp_esr;
	uint32_t warp_pc_low;
	uint32_t global_mask;
	uint32_t warp_mask;
	uint32_t reserved;
	uint64_t address;
	uint64_t warp_pc; /* a virtual address; 0 after a trap (measured on 580) */
	uint32_t cluster_esr;
	uint32_t cluster_mask;
};
MPSD_RM_SIZE(struct mpsd_rm_sm_error, 48);

struct mpsd_rm_sm_errors { /* READ_ALL_SM_ERRORS */
	uint32_t channel; /* 0: that of the session */
	uint32_t count;
	struct mpsd_rm_sm_error sms[MPSD_RM_SMS_PER_CALL];
	uint32_t old_mmu_fault;
	uint8_t has_mmu_fault;
	uint8_t reserved[3];
	uint32_t mmu_fault;
	uint32_t first;
};
MPSD_RM_SIZE(struct mpsd_rm_sm_errors, 4824);

#endif
