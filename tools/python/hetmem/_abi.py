# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The C interface: layouts, constants and prototypes of <hetmem.h>.

Names are those of the headers without "hetmem_" and "HETMEM_". A test compares
everything here with the headers.
"""

from __future__ import annotations

import ctypes
from typing import Any

P = ctypes.c_void_p
TEXT = ctypes.c_char_p
SIZE = ctypes.c_size_t
SSIZE = ctypes.c_ssize_t
INT = ctypes.c_int
UINT = ctypes.c_uint
U64 = ctypes.c_uint64
U32 = ctypes.c_uint32

STREAM_LEGACY = 0x1
STREAM_PER_THREAD = 0x2
STREAM_HOST = 2 ** (8 * ctypes.sizeof(P)) - 1
STREAM_UNKNOWN = STREAM_HOST - 1

ALLOC_MOVABLE = 1 << 0
ALLOC_KEEP = 1 << 1
ALLOC_WHOLE = 1 << 2
ALLOC_SCRATCH = 1 << 3
ALLOC_SPARSE = 1 << 4
ALLOC_RING = 1 << 5
ALIAS_READ = 1 << 0
SLEEP_DISCARD = 0
SLEEP_KEEP = 1
MEMORY_UNKNOWN = 2**64 - 1
MEMORY_NR = 6
RESERVE_NONE = 2**64 - 1
NONBLOCKING = 1 << 0
NODE_ANY = 0xFFFF

# Kinds of locations, enum hetmem_location_kind.
UNKNOWN = 0
UNMAPPED = 1
HOST = 2
DEVICE = 3
FOREIGN = 4
COHERENT = 5
ZERO = 6

# enum hetmem_remap_cause, HETMEM_REMAP_* and enum hetmem_source, in order.
REMAP_CAUSES = ("spill", "fetch", "sleep", "wake", "pin")
REMAP_CHANGES = ("MEMORY_TYPE", "BUFFER_ID", "IPC", "DMABUF")
SOURCES = ("unknown", "module", "move_pages", "request", "driver")
PLACEMENTS = ("stream", "host", "device", "both", "read_mostly", "streaming")
EDGES = ("record", "wait", "sync")


class Params(ctypes.Structure):
    _fields_ = [("size", SIZE), ("driver", TEXT), ("module_path", TEXT)]


class AllocParams(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("bytes", SIZE),
        ("align", SIZE),
        ("stream", P),
        ("reserve", SIZE),
        ("private_pool", U64),
        ("flags", UINT),
        ("placement", UINT),
        ("priority", INT),
        ("tag", TEXT),
    ]


class Extent(ctypes.Structure):
    _fields_ = [("offset", SIZE), ("length", SIZE)]


class ResourceStats(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("live", U64),
        ("requested", U64),
        ("requested_peak", U64),
        ("reserved", U64),
        ("reserved_peak", U64),
        ("metadata", U64),
        ("allocs", U64),
        ("frees", U64),
        ("failed", U64),
        ("driver_calls", U64),
        ("host_wait_ns", U64),
        ("parked", U64),
        ("spilled", U64),
        ("spill_host", U64),
        ("spill_host_peak", U64),
        ("spilled_total", U64),
        ("fetched_total", U64),
        ("spilled_peak", U64),
        ("parked_file", U64),
        ("pressures", U64),
        ("addresses", U64),
        ("replicas", U64),
    ]


KEEP_NAME = 64


class Kept(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("bytes", U64),
        ("generation", U64),
        ("uid", U32),
        ("mode", U32),
        ("segments", U32),
        ("users", U32),
        ("pid", INT),
        ("name", ctypes.c_char * KEEP_NAME),
    ]


class Counter(ctypes.Structure):
    _fields_ = [("value", U64), ("peak", U64), ("total", U64)]


class Counters(ctypes.Structure):
    _fields_ = [("size", SIZE), ("bytes", Counter), ("blocks", Counter)]


class Access(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("host", INT),
        ("some_host", INT),
        ("devices", U64),
        ("some_devices", U64),
        ("unit", U64),
    ]


class Remap(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("ptr", P),
        ("bytes", SIZE),
        ("cause", UINT),
        ("changes", UINT),
        ("after", INT),
        ("error", INT),
    ]


class Pressure(ctypes.Structure):
    _fields_ = [("size", SIZE), ("bytes", U64), ("held", U64), ("at", U64)]


class DeviceProps(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("platform", INT),
        ("managed", INT),
        ("vmm", INT),
        ("host_node", INT),
        ("total", U64),
        ("granularity", U64),
        ("module_id", INT),
        ("name", ctypes.c_char * 96),
    ]


class Feature(ctypes.Structure):
    _fields_ = [("name", TEXT), ("available", INT), ("reason", TEXT)]


class Run(ctypes.Structure):
    _fields_ = [
        ("start", U64),
        ("end", U64),
        ("location", U32),
        ("order", ctypes.c_uint16),
        ("flags", ctypes.c_uint16),
        ("why", U32),
        ("reserved", U32),
    ]


class MemoryFigure(ctypes.Structure):
    _fields_ = [
        ("bytes", U64),
        ("counts", INT),
        ("reserved", INT),
        ("source", ctypes.c_char * 112),
    ]


class MemoryInfo(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("reserve", U64),
        ("total", U64),
        ("usable", U64),
        ("least", INT),
        ("pressures", UINT),
        ("figures", MemoryFigure * MEMORY_NR),
        ("imported", U64),
    ]


# As an int it is -2.
RECLAIM_ALL = (1 << 64) - 2


class Reclaimed(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("bytes", U64),
        ("asked", UINT),
        ("silent", UINT),
        ("pid", INT),
        ("reserved", UINT),
    ]


RECLAIMED_FN = ctypes.CFUNCTYPE(None, P, ctypes.POINTER(Reclaimed))


class Reclaim(ctypes.Structure):
    _fields_ = [
        ("size", SIZE),
        ("device", INT),
        ("timeout_ms", UINT),
        ("bytes", U64),
        ("each", RECLAIMED_FN),
        ("arg", P),
    ]


STRUCTS: tuple[type[ctypes.Structure], ...] = (
    Params,
    AllocParams,
    Extent,
    Kept,
    ResourceStats,
    Counter,
    Counters,
    Access,
    Remap,
    Pressure,
    DeviceProps,
    Feature,
    Run,
    MemoryFigure,
    MemoryInfo,
    Reclaimed,
    Reclaim,
)

REMAP_FN = ctypes.CFUNCTYPE(None, ctypes.POINTER(Remap), P)
PRESSURE_FN = ctypes.CFUNCTYPE(None, P, ctypes.POINTER(Pressure))

# The result first.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "hetmem_open": (INT, P, P),
    "hetmem_close": (None, P),
    "hetmem_last_error": (TEXT,),
    "hetmem_driver_name": (TEXT, P),
    "hetmem_device_count": (INT, P),
    "hetmem_device_props": (INT, P, INT, P),
    "hetmem_platform_name": (TEXT, INT),
    "hetmem_feature": (INT, P, INT, P),
    "hetmem_resource_create": (INT, P, TEXT, P),
    "hetmem_resource_explain": (INT, P, TEXT, TEXT, SIZE),
    "hetmem_resource_destroy": (SSIZE, P),
    "hetmem_resource_current": (INT, P, INT, P),
    "hetmem_resource_set_current": (INT, P, INT, P, P),
    "hetmem_resource_stats": (INT, P, P),
    "hetmem_resource_access": (INT, P, P),
    "hetmem_resource_set": (INT, P, TEXT, TEXT),
    "hetmem_alloc": (INT, P, SIZE, SIZE, P, P),
    "hetmem_alloc_with": (INT, P, P, P),
    "hetmem_free": (INT, P, P, SIZE, P),
    "hetmem_record_stream": (INT, P, P, P),
    "hetmem_stream_retire": (INT, P, P),
    "hetmem_grow": (INT, P, P, SIZE, P),
    "hetmem_shrink": (INT, P, P, SIZE, SIZE, P),
    "hetmem_alias": (INT, P, P, SIZE, UINT, P),
    "hetmem_replicate": (INT, P, P, INT, P),
    "hetmem_refresh": (INT, P, P, P),
    "hetmem_commit": (INT, P, P, SIZE, SIZE, P),
    "hetmem_commit_with": (INT, P, P, SIZE, SIZE, UINT, P),
    "hetmem_decommit": (INT, P, P, SIZE, SIZE, P),
    "hetmem_committed": (SSIZE, P, P, P, SIZE),
    "hetmem_poll": (INT, P),
    "hetmem_trim": (INT, P, SIZE, P),
    "hetmem_sleep": (INT, P, TEXT, UINT),
    "hetmem_wake": (INT, P, TEXT),
    "hetmem_wake_within": (INT, P, TEXT, UINT),
    "hetmem_tag_stats": (INT, P, TEXT, P),
    "hetmem_parked_read": (INT, P, P, P, SIZE),
    "hetmem_import_close": (INT, P, P),
    "hetmem_keeper_open": (INT, TEXT, P),
    "hetmem_keeper_close": (None, P),
    "hetmem_keep": (INT, P, P, P, TEXT, UINT),
    "hetmem_kept_import": (INT, P, P, INT, TEXT, P, P),
    "hetmem_kept_drop": (INT, P, TEXT),
    "hetmem_kept_next": (INT, P, U64, P),
    "hetmem_reclaim": (INT, P, P, P),
    "hetmem_spill": (INT, P, P),
    "hetmem_fetch": (INT, P, P),
    "hetmem_spill_async": (INT, P, P),
    "hetmem_fetch_async": (INT, P, P),
    "hetmem_host_access": (INT, P, P),
    "hetmem_priority": (INT, P, P, INT),
    "hetmem_on_remap": (INT, P, REMAP_FN, P),
    "hetmem_off_remap": (INT, P, REMAP_FN, P),
    "hetmem_on_pressure": (INT, P, PRESSURE_FN, P),
    "hetmem_counters": (INT, P, P),
    "hetmem_counters_push": (INT, P),
    "hetmem_counters_pop": (INT, P, P),
    "hetmem_log_edge": (INT, P, INT, P, P),
    "hetmem_move": (INT, P, P, SIZE, U32, P, UINT, P),
    "hetmem_residency": (SSIZE, P, P, SIZE, P, P, SIZE, P),
    "hetmem_memory_info": (INT, P, INT, P),
    "hetmem_memory_figure_name": (TEXT, INT),
    "hetmem_location_name": (TEXT, P, U32, TEXT, SIZE),
    "hetmem_why_names": (TEXT, U32, TEXT, SIZE),
    "hetmem_torch_resource": (P, INT),
    "hetmem_torch_try_alloc": (INT, SIZE, INT, P, P),
    "hetmem_torch_region": (INT, TEXT, UINT),
    "hetmem_torch_retain_pool": (INT, INT, U64, U64),
    "hetmem_torch_pool_refs": (INT, INT, U64, U64),
    "hetmem_torch_free": (None, P, SIZE, INT, P),
    "hetmem_torch_record_stream": (None, P, P),
    "hetmem_torch_base_alloc": (P, P, P),
    "hetmem_numpy_handler": (INT, P, SIZE, P, P),
}
