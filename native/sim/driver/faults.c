/* Kernels that fault, and what a fault does: under MPS the server decides, else only we suffer. */
#include "driver.h"

#include <stdio.h>
#include <string.h>

/* Alone on the GPU; what it is under MPS is in the server's fault.c. */
static const struct {
	int error;
	unsigned ms;
	const char *exception; /* as Xid 13 puts it; NULL: none */
	bool channel;          /* Xid 43 */
} alone[FAULT_CLASSES] = {
	[FAULT_MMU] = { CUDA_ERROR_ILLEGAL_ADDRESS, 145, NULL, false },
	[FAULT_TRAP] = { CUDA_ERROR_LAUNCH_FAILED, 330, NULL, true },
	[FAULT_ASSERT] = { CUDA_ERROR_ASSERT, 4, NULL, false },
	[FAULT_ILLEGAL] = { CUDA_ERROR_ILLEGAL_INSTRUCTION, 50, "Illegal Instruction Encoding", true },
	[FAULT_MISALIGNED] = { CUDA_ERROR_MISALIGNED_ADDRESS, 107, "Misaligned Address", true },
	[FAULT_STACK] = { CUDA_ERROR_ILLEGAL_ADDRESS, 47, "Out Of Range Address", true },
};

static void raise_alone(CUcontext context, enum fault_class fault, const char *detail)
{
	queue_sleep(context, machine_delay_ms(alone[fault].ms, 1) * 1000000ull);
	if (fault == FAULT_MMU)
		machine_xid_mmu(context->gpu, driver.pid, detail);
	if (alone[fault].exception)
		machine_xid_exception(context->gpu, alone[fault].exception);
	if (alone[fault].channel)
		machine_xid_channel(context->gpu, driver.pid);
	driver.doomed = alone[fault].error;
	context_fail_all(alone[fault].error);
}

static void raise_with(CUcontext context, enum fault_class fault, const char *detail)
{
	if (context->link.fd < 0) {
		raise_alone(context, fault, detail);
		return;
	}
	link_send(context->link.fd, LINK_FAULT, (struct link_head){ .status = (int)fault }, detail, strlen(detail) + 1, LINK_NO_FD);
	queue_sleep(context, UINT64_MAX); /* the kernel hangs until the server says what becomes of it */
}

void fault_access(CUcontext context, CUdeviceptr address, const char *type, const char *access)
{
	char detail[128];

	snprintf(detail, sizeof(detail), "faulted @ 0x%llx_%08llx. Fault is of type %s ACCESS_TYPE_VIRT_%s", address >> 32,
		 address & 0xffffffff, type, access);
	raise_with(context, FAULT_MMU, detail);
}

static void unmapped_write(CUcontext context, const struct work *work)
{
	(void)work;
	fault_access(context, 0x7000dead0000ull, "FAULT_PDE", "WRITE");
}

static void unmapped_read(CUcontext context, const struct work *work)
{
	(void)work;
	fault_access(context, 0x7000dead0000ull, "FAULT_PDE", "READ");
}

static void unmapped_atomic(CUcontext context, const struct work *work)
{
	(void)work;
	fault_access(context, 0x7000dead0000ull, "FAULT_PDE", "ATOMIC");
}

static void null_write(CUcontext context, const struct work *work)
{
	(void)work;
	fault_access(context, 0, "FAULT_PDE", "WRITE");
}

static void near_null_write(CUcontext context, const struct work *work)
{
	(void)work;
	fault_access(context, 0x1000, "FAULT_PDE", "WRITE");
}

/* p[0] = 7: faults where memory was freed or may only be read. */
static void touch(CUcontext context, const struct work *work)
{
	CUdeviceptr p = work->launch.values[0];

	if (address_may(p, 8, ADDRESS_WRITE))
		*(uint64_t *)p = 7;
	else
		fault_access(context, p, address_may(p, 8, ADDRESS_READ) ? "FAULT_RO_VIOLATION" : "FAULT_PDE", "WRITE");
}

static void misaligned(CUcontext context, const struct work *work)
{
	(void)work;
	raise_with(context, FAULT_MISALIGNED, "");
}

static void trap(CUcontext context, const struct work *work)
{
	(void)work;
	raise_with(context, FAULT_TRAP, "");
}

static void assert_fail(CUcontext context, const struct work *work)
{
	(void)work;
	raise_with(context, FAULT_ASSERT, "");
}

static void illegal_instruction(CUcontext context, const struct work *work)
{
	(void)work;
	raise_with(context, FAULT_ILLEGAL, "");
}

static void stack_overflow(CUcontext context, const struct work *work)
{
	(void)work;
	raise_with(context, FAULT_STACK, "");
}

const struct kernel fault_kernels[] = {
	{ "oob_write", 1, unmapped_write, NULL },
	{ "oob_read", 1, unmapped_read, NULL },
	{ "oob_atomic", 1, unmapped_atomic, NULL },
	{ "null_write", 1, null_write, NULL },
	{ "near_null_write", 1, near_null_write, NULL },
	{ "use_after_free", 1, touch, NULL },
	{ "ro_write", 1, touch, NULL },
	{ "misaligned", 1, misaligned, NULL },
	{ "trap", 1, trap, NULL },
	{ "assert_fail", 1, assert_fail, NULL },
	{ "illegal_instruction", 1, illegal_instruction, NULL },
	{ "stack_overflow", 1, stack_overflow, NULL },
	{ NULL, 0, NULL, NULL },
};
