/* Delayed answers to clients: the limits they get, or the reason of a refusal. */
#include "server.h"

#include <sys/mman.h>
#include <unistd.h>

static void make_page(struct connection *client, int *fd)
{
	void *page = MAP_FAILED;

	*fd = memfd_create("mpsd-sim-page", MFD_CLOEXEC);
	if (*fd >= 0 && ftruncate(*fd, 4096) == 0)
		page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	client->page = page == MAP_FAILED ? NULL : page;
}

static void accept_client(struct server *server, struct connection *client)
{
	const struct link_settings *terms = &client->terms;
	struct link_accept accept = { .percent = terms->percent, .priority = terms->priority,
				      .gpu_count = server->view.count };
	int page;

	for (unsigned i = 0; i < server->view.count; i++)
		accept.gpus[i] = server->view.gpu[i];
	for (unsigned i = 0; i < terms->limit_count; i++) { /* the last one for a device wins */
		int index = machine_find_gpu(&server->view, terms->limits[i].device);

		if (index >= 0 && terms->limits[i].bytes)
			accept.limit_bytes[server->view.gpu[index]] = terms->limits[i].bytes;
	}
	make_page(client, &page);
	link_send(client->fd, LINK_ACCEPT, (struct link_head){ .pid = client->pid, .uid = (int32_t)getpid() }, &accept,
		  sizeof(accept), page);
	if (page >= 0)
		close(page);
}

void client_answers(struct server *server, uint64_t now)
{
	for (unsigned i = 0; i < server->count; i++) {
		struct connection *client = &server->list[i];

		if (client->fd < 0 || !client->answer_ns || client->answer_ns > now)
			continue;
		client->answer_ns = 0;
		if (client->refusal)
			link_send(client->fd, LINK_REFUSE, (struct link_head){ .status = client->refusal }, NULL, 0, LINK_NO_FD);
		else
			accept_client(server, client);
	}
}
