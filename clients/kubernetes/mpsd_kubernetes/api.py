"""The messages and services between a kubelet and a device plugin, of which this plugin needs some.

Names and numbers are those of the public interfaces k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1 and podresources/v1, of
Kubernetes (Copyright The Kubernetes Authors, Apache License 2.0).  Protobuf skips fields that are not here.
"""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
MOST_BYTES = 16 << 20  # of a message, as the kubelet has it for its pods

_FieldType = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _FieldType.TYPE_STRING, "bool": _FieldType.TYPE_BOOL, "int32": _FieldType.TYPE_INT32}
_Fields = Mapping[str, tuple[int, str]]  # number and type: "*" says repeated, "map" is of texts

_DEVICE_PLUGIN: Mapping[str, _Fields] = {
    "Empty": {},
    "DevicePluginOptions": {"pre_start_required": (1, "bool"), "get_preferred_allocation_available": (2, "bool")},
    "RegisterRequest": {
        "version": (1, "string"), "endpoint": (2, "string"), "resource_name": (3, "string"),
        "options": (4, "DevicePluginOptions"),
    },
    "Device": {"ID": (1, "string"), "health": (2, "string")},
    "ListAndWatchResponse": {"devices": (1, "*Device")},
    "ContainerPreferredAllocationRequest": {
        "available_deviceIDs": (1, "*string"), "must_include_deviceIDs": (2, "*string"), "allocation_size": (3, "int32"),
    },
    "PreferredAllocationRequest": {"container_requests": (1, "*ContainerPreferredAllocationRequest")},
    "ContainerPreferredAllocationResponse": {"deviceIDs": (1, "*string")},
    "PreferredAllocationResponse": {"container_responses": (1, "*ContainerPreferredAllocationResponse")},
    "ContainerAllocateRequest": {"devices_ids": (1, "*string")},
    "AllocateRequest": {"container_requests": (1, "*ContainerAllocateRequest")},
    "Mount": {"container_path": (1, "string"), "host_path": (2, "string"), "read_only": (3, "bool")},
    "ContainerAllocateResponse": {"envs": (1, "map"), "mounts": (2, "*Mount")},
    "AllocateResponse": {"container_responses": (1, "*ContainerAllocateResponse")},
    "PreStartContainerRequest": {"devices_ids": (1, "*string")},
    "PreStartContainerResponse": {},
}  # fmt: skip
_POD_RESOURCES: Mapping[str, _Fields] = {
    "ListPodResourcesRequest": {},
    "ContainerDevices": {"resource_name": (1, "string"), "device_ids": (2, "*string")},
    "ContainerResources": {"name": (1, "string"), "devices": (2, "*ContainerDevices")},
    "PodResources": {"name": (1, "string"), "namespace": (2, "string"), "containers": (3, "*ContainerResources")},
    "ListPodResourcesResponse": {"pod_resources": (1, "*PodResources")},
}


def _make(package: str, messages: Mapping[str, _Fields]) -> Any:
    """Return a namespace with a class for each message."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        made = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(made, f".{package}.", field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return SimpleNamespace(**{name: message_factory.GetMessageClass(find(f"{package}.{name}")) for name in messages})


def _add_field(message: Any, package: str, name: str, number: int, kind: str) -> None:
    repeated = kind.startswith("*") or kind == "map"
    label = _FieldType.LABEL_REPEATED if repeated else _FieldType.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    kind = kind.removeprefix("*")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _FieldType.TYPE_MESSAGE
    field.type_name = package + kind
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, package, "key", 1, "string")
        _add_field(entry, package, "value", 2, "string")
        field.type_name = f"{package}{message.name}.{entry.name}"


messages = _make("v1beta1", _DEVICE_PLUGIN)
pods = _make("v1", _POD_RESOURCES)

REGISTER = ("/v1beta1.Registration/Register", messages.RegisterRequest, messages.Empty)
LIST_PODS = ("/v1.PodResourcesLister/List", pods.ListPodResourcesRequest, pods.ListPodResourcesResponse)
WATCH = "ListAndWatch"  # the only call whose answer is a stream
DEVICE_PLUGIN = "v1beta1.DevicePlugin"
CALLS = {
    "GetDevicePluginOptions": (messages.Empty, messages.DevicePluginOptions),
    WATCH: (messages.Empty, messages.ListAndWatchResponse),
    "GetPreferredAllocation": (messages.PreferredAllocationRequest, messages.PreferredAllocationResponse),
    "Allocate": (messages.AllocateRequest, messages.AllocateResponse),
    "PreStartContainer": (messages.PreStartContainerRequest, messages.PreStartContainerResponse),
}


def call(socket: str, method: tuple[str, Any, Any], request: Any, seconds: float) -> Any:
    """Call a method at a Unix socket.  Raises grpc.RpcError."""
    path, asked, answer = method
    with grpc.insecure_channel(f"unix:{socket}", [("grpc.max_receive_message_length", MOST_BYTES)]) as channel:
        send = channel.unary_unary(path, request_serializer=asked.SerializeToString, response_deserializer=answer.FromString)
        return send(request, timeout=seconds)


def handlers(service: str, of: Mapping[str, tuple[Any, Any]], functions: Mapping[str, Callable[[Any, Any], Any]]) -> Any:
    """Return what serves these calls, for `add_generic_rpc_handlers`."""
    made = {}
    for name, function in functions.items():
        asked, answer = of[name]
        make = grpc.unary_stream_rpc_method_handler if name == WATCH else grpc.unary_unary_rpc_method_handler
        made[name] = make(function, request_deserializer=asked.FromString, response_serializer=answer.SerializeToString)
    return grpc.method_handlers_generic_handler(service, made)


def device_ids(answer: Any, resource: str) -> Iterator[str]:
    """Iterate over the devices of a resource that pods have, of an answer to LIST_PODS."""
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name == resource:
                    yield from devices.device_ids
