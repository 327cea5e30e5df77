/* The processes on the machine. A slot without a locked byte belongs to a dead process and is emptied. */
#include "machine.h"

#include <errno.h>
#include <string.h>

static int own_slot = -1;

struct machine_process *machine_self(void)
{
	struct machine_state *state = machine_open();

	return state && own_slot >= 0 ? &state->processes[own_slot] : NULL;
}

int machine_own_slot(void)
{
	return machine_open() ? own_slot : -1;
}

static void empty_slot(struct machine_state *state, unsigned slot)
{
	memset(&state->processes[slot], 0, sizeof(state->processes[slot]));
	machine_blocks_leave(slot);
}

void machine_reap(void)
{
	struct machine_state *state = machine_open();

	for (unsigned i = 0; i < state->process_end; i++)
		if (state->processes[i].kind != MACHINE_FREE && (int)i != own_slot && !machine_slot_is_held(i))
			empty_slot(state, i);
	machine_reap_blocks();
}

static int take_slot(struct machine_state *state)
{
	for (unsigned i = 0; i < MACHINE_PROCESSES; i++)
		if (state->processes[i].kind == MACHINE_FREE && machine_slot_hold(i) == 0) {
			state->process_end = state->process_end > i ? state->process_end : i + 1;
			return (int)i;
		}
	return -ENOSPC;
}

int machine_join(enum machine_kind kind, pid_t pid, pid_t server_pid)
{
	struct machine_state *state = machine_open();
	int slot = own_slot;

	if (!state)
		return -ENODEV;
	machine_lock();
	if (slot < 0) {
		machine_reap();
		slot = take_slot(state);
	}
	if (slot >= 0) {
		state->processes[slot].kind = kind;
		state->processes[slot].pid = pid;
		state->processes[slot].server_pid = server_pid;
		own_slot = slot;
	}
	machine_unlock();
	return slot;
}

/* In exclusive mode one process may have contexts; clients of its MPS server share the server's. */
bool machine_may_create_context(unsigned gpu)
{
	struct machine_state *state = machine_open();
	struct machine_process *self = machine_self();

	if (state->gpus[gpu].mode == MACHINE_DEFAULT)
		return true;
	if (state->gpus[gpu].mode == MACHINE_PROHIBITED)
		return false;
	machine_reap();
	for (unsigned i = 0; i < MACHINE_PROCESSES; i++) {
		struct machine_process *other = &state->processes[i];

		if (other == self || other->kind == MACHINE_FREE || !other->contexts[gpu])
			continue;
		if (self->kind == MACHINE_CLIENT && (other->pid == self->server_pid || other->server_pid == self->server_pid))
			continue;
		if (self->kind == MACHINE_SERVER && other->server_pid == self->pid)
			continue; /* a client that outlived the context of its server */
		return false;
	}
	return true;
}
