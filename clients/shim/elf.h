/* elf.h: symbols of loaded libraries, found without dlsym, which this library stands in for, and without dlerror's memory. */
#ifndef SHIM_ELF_H
#define SHIM_ELF_H

#include <stdbool.h>
#include <stdint.h>

struct elf_object {
	uintptr_t base;         /* what its addresses are relative to */
	uintptr_t first, last;  /* its address range; last is the first address beyond it */
	const void *dynamic;    /* its dynamic section */
};

/* The loaded library with this soname.  Takes the loader's lock, which may be held by the caller already. */
bool elf_find_object(const char *soname, struct elf_object *out);

/* The same for a library that is there from the start and stays, without any call: in the first dlsym of a process, which may be
 * a sanitizer's, nothing may be called that others stand in for.  first, last: 0. */
bool elf_find_early(const char *soname, struct elf_object *out);

/* A defined function or object, of the default version if it has several. NULL: not found. Takes no lock. */
void *elf_find_symbol(const struct elf_object *object, const char *name);

static inline bool elf_contains(const struct elf_object *object, const void *address)
{
	return (uintptr_t)address >= object->first && (uintptr_t)address < object->last;
}

#endif
