/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* /dev/mpsd-fault: its behaviour is specified in mpsd_fault.h. */
#ifndef UVM_MPSD_DEVICE_H
#define UVM_MPSD_DEVICE_H

/* 0, or -errno: no device was made. Context: loading and unloading; may sleep. */
int mpsd_device_open(void);
void mpsd_device_close(void);

#endif
