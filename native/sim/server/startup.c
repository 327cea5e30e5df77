/* Start of a server: it finds its control daemon, opens the devices, and sends READY. */
#include "server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct link_packet packet;

static void take_device(struct server *server, unsigned index)
{
	unsigned gpu = server->view.gpu[index];
	struct machine_state *state = machine_open();
	bool may;

	log_server("Creating server context on device %u (%s)", index, state->gpus[gpu].name);
	machine_sleep_ms(machine_delay_ms(43, 1));
	machine_lock();
	may = machine_may_create_context(gpu);
	if (may)
		machine_self()->contexts[gpu]++;
	machine_unlock();
	if (may && machine_charge(gpu, (uint64_t)SERVER_CONTEXT_MIB << 20))
		return;
	log_server("Failed to create server context on device %u: CUDA_ERROR_DEVICE_UNAVAILABLE", index);
	exit(1);
}

void create_device_contexts(struct server *server)
{
	for (unsigned i = 0; i < server->view.count; i++)
		take_device(server, i);
}

static void connect_to_control(struct server *server)
{
	log_as("Other", "Startup");
	log_as("Other", "Connecting to control daemon on socket: %s/control", link_pipe_directory());
	server->control = link_connect(link_pipe_directory(), "control");
	if (server->control < 0 ||
	    link_send(server->control, LINK_SERVER, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD) < 0 ||
	    link_receive(server->control, &packet, 10000) < 0 || packet.head.kind != LINK_CONFIG ||
	    packet.head.size != sizeof(server->settings))
		exit(1);
	memcpy(&server->settings, packet.payload, sizeof(server->settings));
	log_as("Other", "Initializing server process");
}

static void misbehave(void)
{
	const char *fault = getenv("MPSD_SIM_SERVER_FAULT");

	if (fault && strcmp(fault, "exit") == 0)
		exit(1);
	if (fault && strcmp(fault, "crash") == 0)
		kill(getpid(), SIGKILL);
	while (fault && strcmp(fault, "hang") == 0)
		pause(); /* for ever: that is what was asked for */
}

void startup(struct server *server)
{
	struct machine_view all;
	enum machine_view_error error;
	int first_limit;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getenv("MPSD_SIM_OF_ROOT")) /* measured: /proc/PID/root and /proc/PID/fd of a server are closed to its own user */
		prctl(PR_SET_DUMPABLE, 0);
	link_more_descriptors();
	connect_to_control(server);
	misbehave();
	machine_sleep_ms(machine_delay_ms(93, 2));
	all = machine_all();
	server->view = machine_visible(&all, getenv("CUDA_VISIBLE_DEVICES"), &error);
	if (machine_join(MACHINE_SERVER, getpid(), 0) < 0)
		exit(1);
	create_device_contexts(server);
	log_server("Created anonymous shared memory region mps.shm.%u.%d", (unsigned)getuid(), (int)getpid());
	log_server("CUDA MPS Server for Linux/Unix. Binary version: 13000");
	log_server("Display Driver version: 580");
	log_server("Active Threads Percentage set to %.1f", server->settings.percent);
	for (unsigned i = 0; i < server->settings.limit_count; i++)
		if (server->settings.limits[i].bytes)
			log_server("Device pinned memory limit for device %s set to 0x%llx bytes", server->settings.limits[i].device,
				   (unsigned long long)server->settings.limits[i].bytes);
	log_server("Server Priority set to %d", server->settings.priority);
	log_server("Server has started");
	first_limit = server->settings.limit_count ? (int)server->settings.limits[0].bytes : 0;
	server->stale_pid = first_limit ? first_limit : -1333654781;
	server->stale_context = first_limit ? 1 : 0;
	if (link_send(server->control, LINK_READY, (struct link_head){ 0 }, NULL, 0, LINK_NO_FD) < 0)
		exit(1);
}
