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

static void begin(CUcontext context, enum fault_class fault, const char *detail)
{
	struct link_head head = { .status = (int)fault };

	if (context->link.fd >= 0)
		link_send(context->link.fd, LINK_FAULT, head, detail, strlen(detail) + 1, LINK_NO_FD);
}

static void finish(CUcontext context, enum fault_class fault, const char *detail)
{
	if (context->link.fd < 0)
		raise_alone(context, fault, detail);
	else
		queue_sleep(context, UINT64_MAX); /* the kernel hangs until the server reports the outcome */
}

static void raise_with(CUcontext context, enum fault_class fault, const char *detail)
{
	coredump_culprit(fault);
	begin(context, fault, detail);
	finish(context, fault, detail);
}

static void say_access(const struct bad_access *bad, char *detail, size_t size)
{
	const char *access = bad->access & ADDRESS_ATOMIC ? "ATOMIC" : bad->access & ADDRESS_WRITE ? "WRITE" : "READ";

	snprintf(detail, size, "faulted @ 0x%llx_%08llx. Fault is of type %s ACCESS_TYPE_VIRT_%s", bad->address >> 32,
		 bad->address & 0xffffffff, bad->is_read_only ? "FAULT_RO_VIOLATION" : "FAULT_PDE", access);
}

/* The event queue gets the fault long before the fault has consequences. */
void fault_access(CUcontext context, CUdeviceptr address, unsigned access, bool is_copy)
{
	struct bad_access bad = { address, access, context->gpu, false, is_copy };
	char detail[128];

	bad.is_read_only = access != ADDRESS_READ && address_may(address, 1, ADDRESS_READ);
	say_access(&bad, detail, sizeof(detail));
	space_report(&bad);
	begin(context, FAULT_MMU, detail);
	finish(context, FAULT_MMU, detail);
}

/* The replaced memory, which includes the driver's own code, reads as zeros from now on: an illegal instruction. */
void fault_memory_lost(void)
{
	if (context_accuse(FAULT_ILLEGAL))
		return;
	driver.doomed = alone[FAULT_ILLEGAL].error;
	context_fail_all(alone[FAULT_ILLEGAL].error);
}

static const uint64_t far_away = 0x7000dead0000ull; /* as in kernels.ptx */

static void write_to(CUcontext context, CUdeviceptr address)
{
	uint64_t nowhere, *p = access_word(context, address, ADDRESS_WRITE, &nowhere);

	if (p)
		*p = address; /* as those kernels do that write where something could be */
}

/* Into p[0], as the kernel does. */
static void read_from(CUcontext context, CUdeviceptr address, CUdeviceptr p)
{
	uint64_t nothing, nowhere, *from = access_word(context, address, ADDRESS_READ, &nothing);
	uint64_t *to = from ? access_word(context, p, ADDRESS_WRITE, &nowhere) : NULL;

	if (to)
		*to = *from;
}

static void unmapped_write(CUcontext context, const struct work *work)
{
	(void)work;
	write_to(context, far_away);
}

static void unmapped_read(CUcontext context, const struct work *work)
{
	read_from(context, far_away, work->launch.values[0]);
}

static void unmapped_atomic(CUcontext context, const struct work *work)
{
	uint64_t nowhere, *p = access_word(context, far_away, ADDRESS_ATOMIC, &nowhere);

	(void)work;
	if (p)
		__atomic_fetch_add(p, 1, __ATOMIC_RELAXED);
}

static void null_write(CUcontext context, const struct work *work)
{
	(void)work;
	write_to(context, 0);
}

static void near_null_write(CUcontext context, const struct work *work)
{
	(void)work;
	write_to(context, 0x1000);
}

static void array_null_write(CUcontext context, const struct work *work)
{
	(void)work;
	write_to(context, 0x100000);
}

static void array_null_read(CUcontext context, const struct work *work)
{
	read_from(context, 0x100000, work->launch.values[0]);
}

/* p[0]: faults where memory was freed or may only be read. */
static void touch(CUcontext context, const struct work *work)
{
	write_to(context, work->launch.values[0]);
}

static void managed_oob(CUcontext context, const struct work *work)
{
	write_to(context, work->launch.values[0] - (1ull << 40));
}

/* The detail of an exception of which the SM reports a PC: unified addresses, so that it is one of this process's. */
static void raise_at(CUcontext context, enum fault_class fault, const struct work *work)
{
	char detail[32];

	snprintf(detail, sizeof(detail), "pc %llx", (unsigned long long)(uintptr_t)work->launch.kernel->run);
	raise_with(context, fault, detail);
}

static void misaligned(CUcontext context, const struct work *work)
{
	raise_at(context, FAULT_MISALIGNED, work);
}

static void trap(CUcontext context, const struct work *work)
{
	(void)work;
	raise_with(context, FAULT_TRAP, "");
}

static void assert_fail(CUcontext context, const struct work *work)
{
	(void)work;
	raise_with(context, driver.mps && coredump_is_asked() ? FAULT_DUMPED_ASSERT : FAULT_ASSERT, "");
}

static void illegal_instruction(CUcontext context, const struct work *work)
{
	raise_at(context, FAULT_ILLEGAL, work);
}

static void stack_overflow(CUcontext context, const struct work *work)
{
	raise_at(context, FAULT_STACK, work);
}

const struct kernel fault_kernels[] = {
	{ "oob_write", 1, unmapped_write, NULL },
	{ "oob_read", 1, unmapped_read, NULL },
	{ "oob_atomic", 1, unmapped_atomic, NULL },
	{ "null_write", 1, null_write, NULL },
	{ "near_null_write", 1, near_null_write, NULL },
	{ "array_null_write", 1, array_null_write, NULL },
	{ "array_null_read", 1, array_null_read, NULL },
	{ "use_after_free", 1, touch, NULL },
	{ "managed_freed", 1, touch, NULL },
	{ "managed_oob", 1, managed_oob, NULL },
	{ "ro_write", 1, touch, NULL },
	{ "misaligned", 1, misaligned, NULL },
	{ "trap", 1, trap, NULL },
	{ "assert_fail", 1, assert_fail, NULL },
	{ "illegal_instruction", 1, illegal_instruction, NULL },
	{ "stack_overflow", 1, stack_overflow, NULL },
	/* Of tests/gpu/sm_culprit.py, as far as it is measured. */
	{ "trap_all", 1, trap, NULL },
	{ "trap_waves", 1, trap, NULL }, /* not measured */
	{ "misaligned_all", 1, misaligned, NULL },
	{ "breakpoint", 1, trap, NULL },
	{ "noncanonical", 1, misaligned, NULL },
	{ "shared_overrun", 1, stack_overflow, NULL },
	{ "atomic_misaligned", 1, misaligned, NULL },
	{ "atomic_noncanonical", 1, misaligned, NULL },
	{ "jump_null", 1, illegal_instruction, NULL },
	{ "jump_unmapped", 1, illegal_instruction, NULL },
	{ "jump_misaligned", 1, illegal_instruction, NULL },
	{ "cluster_trap", 1, trap, NULL },
	{ "cluster_shared", 1, stack_overflow, NULL },
	{ "tma_unmapped", 1, unmapped_read, NULL },
	{ "tma_noncanonical", 1, misaligned, NULL },
	{ "tma_misaligned", 1, misaligned, NULL },
	{ NULL, 0, NULL, NULL },
};
