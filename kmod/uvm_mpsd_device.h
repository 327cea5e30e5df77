/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* /dev/mpsd-fault: mpsd_fault.h says how it answers. */
#ifndef UVM_MPSD_DEVICE_H
#define UVM_MPSD_DEVICE_H

/* 0, or -errno: there is no device.  Context: loading and unloading; may sleep. */
int mpsd_device_open(void);
void mpsd_device_close(void);

#endif
