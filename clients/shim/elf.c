/* Read the dynamic section of a loaded library: its name, and its symbols by the GNU or the System V hash table. */
#include "elf.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>

struct tables {
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const uint32_t *hash;
	const ElfW(Half) * versions;
	const char *soname;
};

/* A sanitizer's strcmp may not be ready for being called. */
static bool is_same(const char *one, const char *other)
{
	while (*one && *one == *other) {
		one++;
		other++;
	}
	return *one == *other;
}

/* glibc relocates most of these addresses in place; the vdso's, and other C libraries', are relative. */
static const void *at(const struct elf_object *object, ElfW(Addr) value)
{
	return (const void *)(value < object->base ? value + object->base : value);
}

static struct tables read_tables(const struct elf_object *object)
{
	struct tables tables = { 0 };
	ElfW(Xword) soname = 0;

	for (const ElfW(Dyn) *entry = object->dynamic; entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_SYMTAB)
			tables.symbols = at(object, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_STRTAB)
			tables.strings = at(object, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_GNU_HASH)
			tables.gnu_hash = at(object, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_HASH)
			tables.hash = at(object, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_VERSYM)
			tables.versions = at(object, entry->d_un.d_ptr);
		else if (entry->d_tag == DT_SONAME)
			soname = entry->d_un.d_val;
	}
	if (tables.strings && soname)
		tables.soname = tables.strings + soname;
	return tables;
}

static bool is_it(const struct tables *tables, uint32_t index, const char *name)
{
	const ElfW(Sym) *symbol = &tables->symbols[index];

	return symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) != STT_GNU_IFUNC &&
	       (!tables->versions || !(tables->versions[index] & 0x8000)) && /* hidden: not the default version */
	       is_same(tables->strings + symbol->st_name, name);
}

static const ElfW(Sym) * find_gnu(const struct tables *tables, const char *name)
{
	const uint32_t *table = tables->gnu_hash;
	uint32_t buckets = table[0], first = table[1], words = table[2], hash = 5381, index;
	const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + words), *chain = bucket + buckets;

	for (const char *c = name; *c; c++)
		hash = hash * 33 + (unsigned char)*c;
	if (!buckets)
		return NULL;
	index = bucket[hash % buckets];
	if (index < first)
		return NULL;
	do {
		if ((chain[index - first] | 1) == (hash | 1) && is_it(tables, index, name))
			return &tables->symbols[index];
	} while (!(chain[index++ - first] & 1));
	return NULL;
}

static const ElfW(Sym) * find_sysv(const struct tables *tables, const char *name)
{
	uint32_t count = tables->hash[1]; /* as many chain entries as symbols: walked from end to end, it is done once */

	for (uint32_t index = 1; index < count; index++)
		if (is_it(tables, index, name))
			return &tables->symbols[index];
	return NULL;
}

void *elf_find_symbol(const struct elf_object *object, const char *name)
{
	struct tables tables = read_tables(object);
	const ElfW(Sym) *found = NULL;

	if (!tables.symbols || !tables.strings)
		return NULL;
	if (tables.gnu_hash)
		found = find_gnu(&tables, name);
	else if (tables.hash)
		found = find_sysv(&tables, name);
	return found ? (void *)(object->base + found->st_value) : NULL;
}

struct search {
	const char *soname;
	struct elf_object *out;
};

static int look(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct search *search = argument;
	struct elf_object object = { .base = info->dlpi_addr, .first = UINTPTR_MAX };
	struct tables tables;

	(void)size;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + part->p_vaddr;

		if (part->p_type == PT_DYNAMIC)
			object.dynamic = (const void *)start;
		if (part->p_type != PT_LOAD)
			continue;
		object.first = start < object.first ? start : object.first;
		object.last = start + part->p_memsz > object.last ? start + part->p_memsz : object.last;
	}
	if (!object.dynamic)
		return 0;
	tables = read_tables(&object);
	if (!tables.soname || !is_same(tables.soname, search->soname))
		return 0;
	*search->out = object;
	return 1;
}

bool elf_find_object(const char *soname, struct elf_object *out)
{
	struct search search = { soname, out };

	return dl_iterate_phdr(look, &search) == 1;
}

/* The loader's list only grows at its end while we walk over its beginning. */
bool elf_find_early(const char *soname, struct elf_object *out)
{
	for (const struct link_map *each = _r_debug.r_map; each; each = each->l_next) {
		struct elf_object object = { .base = each->l_addr, .dynamic = each->l_ld };
		struct tables tables;

		if (!object.dynamic)
			continue;
		tables = read_tables(&object);
		if (tables.soname && is_same(tables.soname, soname)) {
			*out = object;
			return true;
		}
	}
	return false;
}
