/* SPDX-License-Identifier: MIT */
/* How many users it takes to keep the inspector from reading for another: each takes all the places that it can get, for ever.
 * Those for files of cgroups are counted apart. */
#define main inspector_main
#include "../../native/inspector/main.c"
#undef main

static int take_all(uint32_t uid)
{
	struct child *place;
	int count = 0;

	for (int kind = 0; kind < 2; kind++)
		while ((place = find_place(uid, kind))) {
			*place = (struct child){ 1, uid, kind };
			count++;
		}
	return count;
}

int main(void)
{
	uint32_t uid = 1;

	while (take_all(uid) > 1)
		uid++;
	printf("%u users take more than one place\n", uid - 1);
	while (take_all(++uid))
		;
	printf("%u users leave none\n", uid - 1);
	return 0;
}
