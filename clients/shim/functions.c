/* The names of kernels, recorded when the program loaded them: after a fault the driver may answer every call with the error.
 * Bounded; kernels beyond the bound have no name. */
#include "shim.h"

enum { PLACES = 4096, NAME_BYTES = 400 /* as mpsd takes them */ };

struct function {
	const void *handle;
	char *name; /* ours; stays */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `known`; nothing is called while it is held */
static struct function known[PLACES];
static const void *last; /* launched */
static bool has_others;   /* something else was launched since things had settled */

/* With the lock held: the place of that handle, or a free one near where it belongs; NULL: neither. */
static struct function *place(const void *handle)
{
	size_t first = ((uintptr_t)handle >> 4) % PLACES;

	for (size_t i = 0; i < 64; i++) {
		struct function *each = &known[(first + i) % PLACES];

		if (each->handle == handle || !each->handle)
			return each;
	}
	return NULL;
}

void functions_learn(const void *function, const char *name)
{
	struct function *mine;
	char *copy = function && name ? strndup(name, NAME_BYTES) : NULL;

	if (!copy)
		return;
	pthread_mutex_lock(&lock);
	mine = place(function);
	if (mine && (!mine->name || strcmp(mine->name, copy) != 0)) { /* the handle may be of a module that has gone */
		char *old = mine->name;

		*mine = (struct function){ function, copy };
		copy = old;
	}
	pthread_mutex_unlock(&lock);
	free(copy);
}

static bool copy_name(const void *handle, char *name, size_t room)
{
	struct function *mine;
	bool is_known;

	pthread_mutex_lock(&lock);
	mine = place(handle);
	is_known = mine && mine->handle == handle && mine->name;
	snprintf(name, room, "%s", is_known ? mine->name : "");
	pthread_mutex_unlock(&lock);
	return is_known;
}

void functions_same(const void *function, const void *kernel)
{
	char name[NAME_BYTES + 1];

	if (kernel && copy_name(kernel, name, sizeof(name)))
		functions_learn(function, name);
}

void functions_launched(const void *function)
{
	const void *before = __atomic_exchange_n(&last, function, __ATOMIC_RELAXED);

	if (before && before != function)
		__atomic_store_n(&has_others, true, __ATOMIC_RELAXED);
}

void functions_settled(void)
{
	if (!__atomic_load_n(&last, __ATOMIC_RELAXED))
		return;
	__atomic_store_n(&last, NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&has_others, false, __ATOMIC_RELAXED);
}

bool functions_last(char *name, size_t room, bool *only)
{
	const void *function = __atomic_load_n(&last, __ATOMIC_RELAXED);

	*only = !__atomic_load_n(&has_others, __ATOMIC_RELAXED);
	*name = 0;
	return function && copy_name(function, name, room);
}
