/* Finding the control daemon and getting a connection to a server from it. */
#include "driver.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Packets are large, and several threads may attach. */
static struct link_packet *packet_new(void)
{
	return malloc(sizeof(struct link_packet));
}

/* Waits for ever, as the real driver does: the process that listens there decides when to answer. */
static int ask(int socket, enum link_kind kind, struct link_head head, struct link_packet *packet)
{
	int rc = link_send(socket, kind, head, NULL, 0, LINK_NO_FD);

	return rc < 0 ? rc : link_receive(socket, packet, -1);
}

/* Every failure here means "no MPS", and CUDA runs without it, silently. */
int mps_probe(void)
{
	struct link_packet *packet = packet_new();
	int socket = link_connect(link_pipe_directory(), "control");
	int rc = MPS_ABSENT;

	if (packet && socket >= 0 && ask(socket, LINK_PROBE, (struct link_head){ 0 }, packet) == 0 &&
	    packet->head.kind == LINK_PROBED)
		rc = 0;
	if (socket >= 0)
		close(socket);
	free(packet);
	return rc;
}

/* The descriptor of a connection to a server; negative: a CUresult. */
static int request(int context, unsigned gpu, struct link_packet *packet)
{
	struct link_head head = { .pid = getpid(), .context = context, .flags = gpu };
	int socket = link_connect(link_pipe_directory(), "control");
	int result = -CUDA_ERROR_MPS_CONNECTION_FAILED;

	if (socket < 0)
		return result;
	if (ask(socket, LINK_HELLO, (struct link_head){ 0 }, packet) == 0 && packet->head.kind == LINK_WELCOME &&
	    ask(socket, LINK_ATTACH, head, packet) == 0) {
		if (packet->head.kind == LINK_GRANT && packet->fd >= 0)
			result = packet->fd;
		else if (packet->head.kind == LINK_REFUSE && packet->head.status > 0)
			result = -packet->head.status;
		link_send(socket, LINK_DONE, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD);
	}
	close(socket);
	return result;
}

static int take_terms(struct mps_link *link, struct link_packet *packet)
{
	void *page;

	if (packet->head.kind == LINK_REFUSE)
		return packet->head.status;
	if (packet->head.kind != LINK_ACCEPT || packet->head.size != sizeof(link->terms) || packet->fd < 0)
		return CUDA_ERROR_MPS_RPC_FAILURE;
	memcpy(&link->terms, packet->payload, sizeof(link->terms));
	page = mmap(NULL, sizeof(*link->page), PROT_READ | PROT_WRITE, MAP_SHARED, packet->fd, 0);
	close(packet->fd);
	if (page == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	link->page = page;
	link->page->space_pid = space_pid();
	driver.pid = packet->head.pid;
	driver.server_pid = packet->head.uid;
	return CUDA_SUCCESS;
}

int mps_attach(int context, unsigned gpu, struct mps_link *link)
{
	struct link_packet *packet = packet_new();
	int rc = CUDA_ERROR_OUT_OF_MEMORY;
	int fd;

	*link = (struct mps_link){ .fd = -1 };
	if (!packet)
		return rc;
	fd = request(context, gpu, packet);
	if (fd < 0) {
		rc = -fd;
	} else {
		link->fd = fd;
		rc = link_receive(fd, packet, -1) < 0 ? CUDA_ERROR_MPS_RPC_FAILURE : take_terms(link, packet);
	}
	if (rc)
		mps_detach(link);
	free(packet);
	return rc;
}

void mps_detach(struct mps_link *link)
{
	if (link->page)
		munmap(link->page, sizeof(*link->page));
	if (link->fd >= 0)
		close(link->fd);
	*link = (struct mps_link){ .fd = -1 };
}

/* Our own wish can only lower what the server allows. */
double mps_percent(const struct mps_link *link)
{
	const char *wish = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	double value = wish ? strtod(wish, NULL) : 0.0;

	return value > 0.0 && value < link->terms.percent ? value : link->terms.percent;
}

static uint64_t parse_bytes(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);

	return *end == 'G' || *end == 'g' ? value << 30 : value << 20;
}

/* CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: "0=1G,GPU-abc=512MB". */
static uint64_t wished_limit(unsigned gpu)
{
	const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	char copy[1024], *rest = copy, *word, *equals;
	uint64_t bytes = 0;

	snprintf(copy, sizeof(copy), "%s", text ? text : "");
	while ((word = strsep(&rest, ","))) {
		int index;

		equals = strchr(word, '=');
		if (!equals)
			continue;
		*equals = '\0';
		index = machine_find_gpu(&driver.view, word);
		if (index >= 0 && driver.view.gpu[index] == gpu)
			bytes = parse_bytes(equals + 1);
	}
	return bytes;
}

uint64_t mps_limit_bytes(const struct mps_link *link, unsigned gpu)
{
	uint64_t wish = wished_limit(gpu), limit = link->terms.limit_bytes[gpu];

	if (!wish || !limit)
		return wish | limit;
	return wish < limit ? wish : limit;
}

void mps_log(const char *format, ...)
{
	char path[300], text[400], line[512];
	va_list list;
	int fifo;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	snprintf(path, sizeof(path), "%s/log", link_pipe_directory());
	fifo = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (fifo < 0)
		return;
	log_put(fifo, line, log_format(line, sizeof(line), "Client", text));
	close(fifo);
}
