/* Account for the GPUs' memory. */
#include "machine.h"

uint64_t machine_used_bytes(unsigned gpu)
{
	struct machine_state *state = machine_open();
	uint64_t used = state->block_bytes[gpu];

	for (unsigned i = 0; i < state->process_end; i++)
		if (state->processes[i].kind != MACHINE_FREE)
			used += state->processes[i].used_bytes[gpu];
	return used;
}

/* The dead are looked for only when memory seems to be short: it takes a system call each. */
bool machine_fits(unsigned gpu, uint64_t bytes)
{
	uint64_t total = machine_open()->gpus[gpu].memory_bytes - ((uint64_t)MACHINE_RESERVED_MIB << 20);
	uint64_t used = machine_used_bytes(gpu);

	if (used <= total && bytes <= total - used)
		return true;
	machine_reap();
	used = machine_used_bytes(gpu);
	return used <= total && bytes <= total - used;
}

bool machine_charge(unsigned gpu, uint64_t bytes)
{
	struct machine_process *self = machine_self();
	bool fit;

	if (!self)
		return false;
	machine_lock();
	fit = machine_fits(gpu, bytes);
	if (fit)
		self->used_bytes[gpu] += bytes;
	machine_unlock();
	return fit;
}

void machine_release(unsigned gpu, uint64_t bytes)
{
	struct machine_process *self = machine_self();

	if (!self)
		return;
	machine_lock();
	self->used_bytes[gpu] -= bytes < self->used_bytes[gpu] ? bytes : self->used_bytes[gpu];
	machine_unlock();
}
