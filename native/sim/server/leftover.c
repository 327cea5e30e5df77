/* The effects of a dead client's kernels on memory that other clients share, while a process keeps its address space.
 *
 * On the device they run until they end, or until the last holder closes the space. Here the kernel's code ended with its
 * process, so the server continues it. A new writer that is admitted before that sees its memory change. */
#include "server.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The page is the client's to write: nothing in it is believed. Leave out what comes after work that only the client can do. */
void leftover_take(struct held *held, const struct link_page *page, uint64_t now)
{
	uint64_t first, end;

	if (!page)
		return;
	first = page->first_effect;
	end = page->effects_end;
	held->count = end - first <= LINK_EFFECTS ? (unsigned)(end - first) : 0;
	for (unsigned i = 0; i < held->count; i++) {
		held->effects[i] = page->effects[(first + i) % LINK_EFFECTS];
		if (held->effects[i].others != page->others_done)
			held->count = i;
	}
	machine_lock();
	for (unsigned i = 0; i < held->count; i++)
		if (machine_block_hold(held->effects[i].block) < 0)
			held->effects[i].kind = LINK_NOTHING; /* it has ended, or never existed */
	machine_unlock();
	held->began_ns = link_began_ns(page);
	held->ticks = now > held->began_ns ? (now - held->began_ns) / LINK_TICK_NS : 0;
}

static void let_go(struct held *held)
{
	if (held->memory)
		munmap(held->memory, held->bytes);
	held->memory = NULL;
}

static uint64_t *reach(struct held *held, const struct link_effect *effect)
{
	struct stat info;
	int fd;

	if (!held->memory) {
		void *got = MAP_FAILED;

		fd = machine_block_open(effect->block);
		if (fd < 0)
			return NULL;
		if (fstat(fd, &info) == 0 && info.st_size > 0)
			got = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		if (got == MAP_FAILED)
			return NULL;
		held->memory = got;
		held->bytes = (uint64_t)info.st_size;
	}
	if (effect->offset % 8 || effect->offset > held->bytes - 8)
		return NULL;
	return (uint64_t *)(held->memory + effect->offset);
}

static void tick(struct held *held, const struct link_effect *effect, uint64_t elapsed_ns)
{
	uint64_t due = (elapsed_ns < effect->needs_ns ? elapsed_ns : effect->needs_ns) / LINK_TICK_NS;
	uint64_t *word = due > held->ticks ? reach(held, effect) : NULL;

	if (word)
		__atomic_fetch_add(word, due - held->ticks, __ATOMIC_RELAXED);
	held->ticks = due > held->ticks ? due : held->ticks;
}

static void finish(struct held *held, const struct link_effect *effect)
{
	uint64_t *word = effect->kind == LINK_ADD || effect->kind == LINK_FILL ? reach(held, effect) : NULL;
	uint64_t room = word ? (held->bytes - effect->offset) / 8 : 0;

	if (word && effect->kind == LINK_ADD)
		__atomic_fetch_add(word, effect->value, __ATOMIC_RELAXED);
	for (uint64_t i = 0; word && effect->kind == LINK_FILL && i < effect->words && i < room; i++)
		word[i] = link_pattern(effect->value, i);
}

void leftover_run(struct held *held, uint64_t now)
{
	while (held->next < held->count) {
		const struct link_effect *effect = &held->effects[held->next];
		uint64_t elapsed_ns = now > held->began_ns ? now - held->began_ns : 0;

		if (effect->kind == LINK_TICK)
			tick(held, effect, elapsed_ns);
		if (elapsed_ns < effect->needs_ns)
			return;
		finish(held, effect);
		let_go(held);
		held->began_ns += effect->needs_ns;
		held->ticks = 0;
		held->next++;
	}
}

static bool is_wanted(const struct server *server, uint64_t block)
{
	for (unsigned i = 0; i < SERVER_HELD; i++)
		for (unsigned j = 0; server->held[i].pid && j < server->held[i].count; j++)
			if (server->held[i].effects[j].block == block)
				return true;
	return false;
}

/* Release its memory, unless the work of another dead client uses it too. */
void leftover_end(struct server *server, struct held *held)
{
	unsigned count = held->count;

	let_go(held);
	held->pid = 0;
	held->count = 0;
	machine_lock();
	for (unsigned i = 0; i < count; i++)
		if (!is_wanted(server, held->effects[i].block))
			machine_block_drop(held->effects[i].block);
	machine_unlock();
}
