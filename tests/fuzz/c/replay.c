/* SPDX-License-Identifier: MIT */
/* Without libFuzzer: each file of a corpus once.  Usage: TARGET DIRECTORY... */
#include "choices.h"

static void replay(const char *path)
{
	static uint8_t bytes[1 << 20];
	FILE *file = fopen(path, "rb");
	size_t count;

	must(file != NULL, path);
	count = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	LLVMFuzzerTestOneInput(bytes, count);
}

int main(int argc, char **argv)
{
	int replayed = 0;

	for (int i = 1; i < argc; i++) {
		DIR *directory = opendir(argv[i]);
		const struct dirent *entry;

		must(directory != NULL, argv[i]);
		while ((entry = readdir(directory))) {
			char path[4096];

			if (entry->d_name[0] == '.')
				continue;
			snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
			fprintf(stderr, "%s\n", path); /* the last one is what broke it */
			replay(path);
			replayed++;
		}
		closedir(directory);
	}
	printf("%d inputs: nothing broke\n", replayed);
	return 0;
}
