/* SPDX-License-Identifier: MIT */
/* How many users it takes to keep the inspector from reading for another: each takes all the places that it can get, for ever.
 * Those for files of cgroups come first, and leave the other reads all their places. */
#define main inspector_main
#include "../../native/inspector/main.c"
#undef main

static int take_all(uint32_t uid, bool is_for_cgroup)
{
	struct child *place;
	int count = 0;

	while ((place = find_place(uid, is_for_cgroup))) {
		*place = (struct child){ .pid = 1, .uid = uid };
		count++;
	}
	return count;
}

int main(void)
{
	for (int is_for_cgroup = 1; is_for_cgroup >= 0; is_for_cgroup--) {
		uint32_t uid = 1;

		printf("%s:\n", is_for_cgroup ? "files of cgroups" : "other reads");
		while (take_all(uid, is_for_cgroup) > 1)
			uid++;
		printf("%u users take more than one place\n", uid - 1);
		while (take_all(++uid, is_for_cgroup))
			;
		printf("%u users leave none\n", uid - 1);
	}
	return 0;
}
