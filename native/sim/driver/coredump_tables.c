/* The file of a core dump: an ELF file of tables, as in NVIDIA's cudacoredump.h.
 *
 * Their contents were measured: the table of SMs covers the whole GPU and is the same for all processes; only the culprit's
 * dump has a grid, and in it a lane with the exception or a warp that stopped. */
#include "coredump.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMS = 132, FAULTY_SM = 126, SECTIONS = 16, MACHINE_CUDA = 190, OS_ABI = 0x33, OS_ABI_MODULE = 0x41 };

enum table {
	RELOCATED = SHT_LOUSER + 7,
	DEVICES = SHT_LOUSER + 9,
	CONTEXTS,
	SM_TABLE,
	GRIDS,
	BLOCKS,
	WARPS,
	LANES,
	MODULES,
};

static const uint64_t entry = 0x7f0000a00000, handle = 0x55550000; /* of the kernel and its module */

struct dump {
	size_t used;
	unsigned count;
	Elf64_Shdr sections[SECTIONS];
	unsigned char data[COREDUMP_BYTES];
};

/* The number of the new section. */
static unsigned add(struct dump *dump, uint32_t type, unsigned link, const void *rows, size_t row_bytes, size_t count)
{
	Elf64_Shdr *section = &dump->sections[dump->count];

	section->sh_type = type;
	section->sh_offset = dump->used;
	section->sh_size = row_bytes * count;
	section->sh_entsize = row_bytes;
	section->sh_link = link;
	memcpy(dump->data + dump->used, rows, row_bytes * count);
	dump->used += (row_bytes * count + 7) / 8 * 8;
	return dump->count++;
}

static void begin(struct dump *dump)
{
	memset(dump, 0, sizeof(*dump));
	dump->used = sizeof(Elf64_Ehdr);
	dump->count = 1;
}

/* Afterwards `data` holds the whole file. */
static void end(struct dump *dump, unsigned char os_abi, Elf64_Half type)
{
	Elf64_Ehdr head = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT, os_abi } };

	head.e_type = type;
	head.e_machine = MACHINE_CUDA;
	head.e_version = EV_CURRENT;
	head.e_shoff = dump->used;
	head.e_ehsize = sizeof(head);
	head.e_shentsize = sizeof(Elf64_Shdr);
	head.e_shnum = (Elf64_Half)dump->count;
	memcpy(dump->data, &head, sizeof(head));
	memcpy(dump->data + dump->used, dump->sections, dump->count * sizeof(Elf64_Shdr));
	dump->used += dump->count * sizeof(Elf64_Shdr);
}

/* The module as it was loaded: the kernel's name and its place. */
static void add_image(struct dump *dump, unsigned modules, const char *kernel, struct dump *image)
{
	char names[64] = "";
	Elf64_Sym symbols[2] = { { 0 }, { .st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_value = entry } };
	unsigned strings;

	snprintf(names + 1, sizeof(names) - 1, "%s", kernel);
	begin(image);
	strings = add(image, SHT_STRTAB, 0, names, 1, sizeof(names));
	add(image, SHT_SYMTAB, strings, symbols, sizeof(*symbols), 2);
	end(image, OS_ABI_MODULE, ET_EXEC);
	add(dump, RELOCATED, modules, image->data, 1, image->used);
}

/* One warp of one lane, of block 0 on SM 0. */
static void add_work(struct dump *dump, unsigned devices, unsigned sms, const struct coredump_exception *exception)
{
	uint64_t grid[17] = { 2, 0, 0, entry, handle }, block[7] = { 2 }, warp[8] = { 0 }, lane[7] = { entry + 16, 16 };
	unsigned parent;

	add(dump, GRIDS, devices, grid, sizeof(grid), 1);
	parent = add(dump, BLOCKS, sms, block, sizeof(block), 1);
	warp[1] = 1 | 1ull << 32;                           /* id, valid lanes */
	warp[2] = 1 | (exception->on_lane ? 0 : 1ull << 32); /* active lanes, whether it is broken */
	parent = add(dump, WARPS, parent, warp, sizeof(warp), 1);
	lane[4] = exception->kind;
	add(dump, LANES, parent, lane, sizeof(lane), 1);
}

static void fill(struct dump *dump, struct dump *image, uint64_t (*sms)[6], const struct coredump_exception *exception,
		 pid_t pid, bool is_culprit)
{
	uint64_t device[11] = { 0 }, context[5] = { [4] = (uint64_t)pid << 32 };
	unsigned devices, contexts, modules, table;

	for (unsigned i = 0; i < SMS; i++) {
		sms[i][0] = i;
		if ((i == FAULTY_SM && exception->on_gpu) || (i == 0 && is_culprit))
			sms[i][1] = exception->kind;
	}
	begin(dump);
	devices = add(dump, DEVICES, 0, device, sizeof(device), 1);
	contexts = add(dump, CONTEXTS, devices, context, sizeof(context), 1);
	modules = add(dump, MODULES, contexts, &handle, sizeof(handle), 1);
	add_image(dump, modules, exception->kernel, image);
	table = add(dump, SM_TABLE, devices, sms, sizeof(*sms), SMS);
	if (is_culprit)
		add_work(dump, devices, table, exception);
	end(dump, OS_ABI, ET_CORE);
}

size_t coredump_make(unsigned char data[COREDUMP_BYTES], const struct coredump_exception *exception, pid_t pid, bool is_culprit)
{
	struct dump *dump = malloc(sizeof(*dump)), *image = malloc(sizeof(*image));
	uint64_t (*sms)[6] = calloc(SMS, sizeof(*sms));
	size_t size = 0;

	if (dump && image && sms) {
		fill(dump, image, sms, exception, pid, is_culprit);
		size = dump->used;
		memcpy(data, dump->data, size);
	}
	free(sms);
	free(image);
	free(dump);
	return size;
}
