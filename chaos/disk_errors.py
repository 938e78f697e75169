"""Commits of SQLite that fail as on a broken disk: the last page of a transaction is written, or not, and the write
reports an I/O error.

SQLite lets a test take the place of the system's `pwrite64`. Every transaction of this process passes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_FRAME_HEADER = 24
_WRITE = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True
)
_NAME = b"pwrite64"


class _Vfs(ctypes.Structure):
    """As much of `sqlite3_vfs` as is needed here."""


_Set = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Vfs), ctypes.c_char_p, ctypes.c_void_p)
_Get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Vfs), ctypes.c_char_p)
_Vfs._fields_ = [
    ("version", ctypes.c_int),
    ("file_size", ctypes.c_int),
    ("longest_path", ctypes.c_int),
    ("next_vfs", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("data", ctypes.c_void_p),
    ("methods", ctypes.c_void_p * 13),
    ("set_system_call", _Set),
    ("get_system_call", _Get),
]


def can_fail() -> bool:
    """Whether this Python's SQLite is a library of its own, and lets itself be disturbed."""
    try:
        vfs = _find_vfs()
    except OSError:
        return False
    return bool(vfs.contents.version >= 3 and vfs.contents.get_system_call(vfs, _NAME))


def _find_vfs() -> Any:
    library = ctypes.CDLL("libsqlite3.so.0", mode=os.RTLD_NOLOAD)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    library.sqlite3_libversion.restype = ctypes.c_char_p
    if library.sqlite3_libversion().decode() != sqlite3.sqlite_version:
        raise OSError("it is not the library of this Python")
    return library.sqlite3_vfs_find(None)


@contextmanager
def failing_commits(
    fails: Callable[[str, bytes], bool | None], failed: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Ask `fails` about each commit; it takes the path of the log, and the pages of the transaction.

    None: it succeeds. Otherwise it fails; False: its last page is missing then, True: it is whole in the log.
    `failed` is called before anybody else can write.
    """
    vfs = _find_vfs()
    system: int = vfs.contents.get_system_call(vfs, _NAME)
    write = _WRITE(system)
    pages: dict[int, bytearray] = {}
    committing: set[int] = set()

    def intercept(descriptor: int, buffer: int, size: int, offset: int) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith("-wal"):
            content = ctypes.string_at(buffer, size)
            if size == _FRAME_HEADER:
                if content[4:8] != bytes(4):  # The size of the database: the frame is the last of a transaction.
                    committing.add(descriptor)
            elif size > _FRAME_HEADER:
                pages.setdefault(descriptor, bytearray()).extend(content)
                if descriptor in committing:
                    committing.discard(descriptor)
                    is_whole = fails(path, bytes(pages.pop(descriptor)))
                    if is_whole is not None:
                        if is_whole:
                            write(descriptor, buffer, size, offset)
                        failed()
                        ctypes.set_errno(errno.EIO)
                        return -1
        return int(write(descriptor, buffer, size, offset))

    callback = _WRITE(intercept)
    vfs.contents.set_system_call(vfs, _NAME, ctypes.cast(callback, ctypes.c_void_p))
    try:
        yield
    finally:
        vfs.contents.set_system_call(vfs, _NAME, system)
