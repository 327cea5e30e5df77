/* A module whose kernel is no longer an instruction: the linker's cubin, with zeros in it.
 *
 * The simulator's linker returns the text, which has no ELF sections and stays as it is. */
#include "client.h"

#include <elf.h>
#include <string.h>

static const Elf64_Shdr *section(const unsigned char *image, unsigned index)
{
	const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;

	return (const Elf64_Shdr *)(image + head->e_shoff) + index;
}

static void zero_section(unsigned char *image, const char *name)
{
	const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
	const char *names = (const char *)image + section(image, head->e_shstrndx)->sh_offset;

	for (unsigned i = 0; i < head->e_shnum; i++)
		if (strcmp(names + section(image, i)->sh_name, name) == 0)
			memset(image + section(image, i)->sh_offset, 0, section(image, i)->sh_size);
}

CUfunction broken_code_kernel(struct client *client)
{
	CUlinkState link;
	CUmodule module;
	CUfunction function;
	void *image;
	size_t size;

	CLIENT_CHECK(client, cuLinkCreate(0, NULL, NULL, &link), EXIT_WORK);
	CLIENT_CHECK(client, cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)kernels_ptx, strlen(kernels_ptx) + 1,
					   "kernels", 0, NULL, NULL), EXIT_WORK);
	CLIENT_CHECK(client, cuLinkComplete(link, &image, &size), EXIT_WORK);
	if (size > sizeof(Elf64_Ehdr) && memcmp(image, ELFMAG, SELFMAG) == 0)
		zero_section(image, ".text.illegal_instruction");
	CLIENT_CHECK(client, cuModuleLoadData(&module, image), EXIT_WORK);
	CLIENT_CHECK(client, cuLinkDestroy(link), EXIT_WORK);
	CLIENT_CHECK(client, cuModuleGetFunction(&function, module, "illegal_instruction"), EXIT_WORK);
	return function;
}
