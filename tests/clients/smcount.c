/* smcount: the number of SMs on which a kernel of ours really runs, and the attribute's value. */
#include "client.h"

int main(int argc, char **argv)
{
	struct client client;
	int seen;

	client_options(&client, "smcount", &argc, argv);
	if (argc > 1)
		client_usage("smcount [--json]");
	client_start(&client);
	seen = client_seen_sms(&client);
	client_say(&client, "sms", "%d SMs seen, attribute %d", "\"seen\": %d, \"attribute\": %d", seen, client_sms(&client));
	return 0;
}
