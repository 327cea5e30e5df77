/* Graphs: record the calls of a capturing stream and repeat them. They run in order, as all work here does; nodes cannot be
 * edited. */
#include "driver.h"

#include <stdlib.h>

struct CUgraph_st { /* of an executable one the same, which is a copy */
	struct work *first, **last;
};

static CUgraph new_graph(void)
{
	CUgraph graph = calloc(1, sizeof(*graph));

	if (graph)
		graph->last = &graph->first;
	return graph;
}

static void free_graph(CUgraph graph)
{
	struct work *work, *next;

	for (work = graph ? graph->first : NULL; work; work = next) {
		next = work->next;
		free(work);
	}
	free(graph);
}

static bool append(CUgraph graph, const struct work *work)
{
	struct work *copy = malloc(sizeof(*copy));

	if (!copy)
		return false;
	*copy = *work;
	copy->next = NULL;
	*graph->last = copy;
	graph->last = &copy->next;
	return true;
}

/* Events are not captured. */
CUresult graph_take(CUstream stream, const struct work *work)
{
	if (work->run == event_reached)
		return stream_must_not_capture(stream);
	if (stream->spoiled)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	return append(stream->capture, work) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stream_must_not_capture(CUstream stream)
{
	stream = stream_named(stream);
	if (!stream || !stream->capture)
		return CUDA_SUCCESS;
	stream->spoiled = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

SIM_EXPORT CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	(void)mode;
	hStream = stream_named(hStream);
	if (!hStream)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (hStream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	hStream->spoiled = false;
	hStream->capture = new_graph();
	return hStream->capture ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_PER_THREAD(cuStreamBeginCapture_v2, _ptsz);

SIM_EXPORT CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	CUgraph graph;

	hStream = stream_named(hStream);
	graph = hStream ? hStream->capture : NULL;
	if (!phGraph)
		return CUDA_ERROR_INVALID_VALUE;
	if (!graph)
		return CUDA_ERROR_ILLEGAL_STATE;
	hStream->capture = NULL;
	*phGraph = hStream->spoiled ? NULL : graph;
	if (!hStream->spoiled)
		return CUDA_SUCCESS;
	free_graph(graph);
	return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}
SIM_PER_THREAD(cuStreamEndCapture, _ptsz);

SIM_EXPORT CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
{
	if (!captureStatus)
		return CUDA_ERROR_INVALID_VALUE;
	hStream = stream_named(hStream);
	*captureStatus = !hStream || !hStream->capture ? CU_STREAM_CAPTURE_STATUS_NONE :
			 hStream->spoiled	       ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}
SIM_PER_THREAD(cuStreamIsCapturing, _ptsz);

SIM_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	CUgraph copy;

	(void)flags;
	if (!phGraphExec || !hGraph)
		return CUDA_ERROR_INVALID_VALUE;
	copy = new_graph();
	for (struct work *work = hGraph->first; copy && work; work = work->next)
		if (!append(copy, work)) {
			free_graph(copy);
			copy = NULL;
		}
	*phGraphExec = (CUgraphExec)copy;
	return copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	CUresult rc = hGraphExec ? stream_must_not_capture(hStream) : CUDA_ERROR_INVALID_VALUE;

	for (struct work *work = rc == CUDA_SUCCESS ? ((CUgraph)hGraphExec)->first : NULL; work && rc == CUDA_SUCCESS; work = work->next)
		rc = queue_do(work, hStream, false);
	return rc;
}
SIM_PER_THREAD(cuGraphLaunch, _ptsz);

SIM_EXPORT CUresult cuGraphDestroy(CUgraph hGraph)
{
	if (!hGraph)
		return CUDA_ERROR_INVALID_VALUE;
	free_graph(hGraph);
	return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	return cuGraphDestroy((CUgraph)hGraphExec);
}
