"""Registries of classes by name: attention, models, tasks and arena tasks, built in or plugins.

A plugin joins a table in one of three ways:

- the decorator: `@longspan.register_attention` above a class in your own module;
- an entry point of an installed package, in the group `longspan.attention` (`.models`, `.tasks`, `.arena_tasks`);
- its path: `package.module:Name`, wherever a name is expected.

Nothing is imported before it is needed. A path from a file, such as a model's `config.json`, is imported only if its
package is installed, is imported already, or is listed in LONGSPAN_PLUGINS: otherwise a model folder could run code
that is stored beside it.

LONGSPAN_PLUGINS lists them, separated by commas: a module, which registers its classes itself, or `module:Name` for
one class; `=/folder` behind either says where it is. Registering a class adds it there, so that child processes (arena
cells, measurements, audits) know the plugin too.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from longspan.errors import InvalidInput, UnknownName, suggest

Entry = TypeVar("Entry")
PLUGINS = "LONGSPAN_PLUGINS"  # modules with plugins, separated by commas; child processes read it


class Registry(Generic[Entry]):
    """A registry of classes by name. Entries must be subclasses of `base`, given as `package.module:Name`."""

    def __init__(self, kind: str, group: str, base: str, entries: dict[str, str]) -> None:
        self.kind, self.group, self.base = kind, group, base
        self.entries = entries  # name -> path of a built-in class
        self.registered: dict[str, type[Entry]] = {}  # by the decorator

    def register(self, cls: type[Entry]) -> type[Entry]:
        """Decorator that registers a class under its `name`. A name that another class has is refused."""
        self._check(cls, f"{cls.__module__}:{cls.__qualname__}")
        name = getattr(cls, "name", None)
        if not isinstance(name, str) or not name or ":" in name:
            raise InvalidInput(f"{cls.__qualname__} needs a name: a class attribute such as name = 'mine'")
        known = self.registered.get(name)
        same = known is not None and (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)
        if name in self.entries or (known is not None and not same):
            raise InvalidInput(f"{self.kind} {name!r} is already registered; give {cls.__qualname__} another name")
        self.registered[name] = cls  # a reloaded module replaces its own class
        if cls.__module__ != "__main__":  # which no other process could import
            trust(f"{cls.__module__}:{cls.__qualname__}")
        return cls

    def adopt(self, path: str) -> str:
        """Register the class that a user named by its path; the name that it has from now on."""
        trust(path)
        cls = self.find(path)
        self.register(cls)
        return str(cls.name)  # type: ignore[attr-defined]  # which `register` has checked

    def names(self) -> list[str]:
        """Every name: built in, registered by a decorator, and of installed packages."""
        self._import_listed()
        return list(dict.fromkeys([*self.entries, *self.registered, *self._installed()]))

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def find(self, name: str) -> type[Entry]:
        """The class of a name or a path; the error for an unknown name suggests the nearest ones."""
        if name in self.entries:
            return self._load(self.entries[name])
        if ":" in name:
            return self._load(name, plugin=True)
        self._import_listed()
        if name in self.registered:
            return self.registered[name]
        if name in self._installed():
            return self._load(self._installed()[name])
        raise UnknownName(f"no {self.kind} is called {name!r}: {suggest(name, self.names())}")

    def source(self, name: str) -> str | None:
        """The path of a plugin, as `package.module:Name`; None for built-in entries."""
        if name in self.entries:
            return None
        cls = self.find(name)
        return f"{cls.__module__}:{cls.__qualname__}"

    def _import_listed(self) -> None:
        """What LONGSPAN_PLUGINS lists; a class of another kind is left to the table of that kind."""
        for path in _listed():
            module, _, name = path.partition(":")
            imported = _import(module) if module not in sys.modules else sys.modules[module]
            if name and (cls := _attribute(imported, path)) not in self.registered.values() and self._accepts(cls):
                self.register(cls)

    def _installed(self) -> dict[str, str]:
        return _entry_points(self.group)

    def _load(self, path: str, *, plugin: bool = False) -> type[Entry]:
        cls: type[Entry] = load_path(path) if plugin else _attribute(import_module(path.partition(":")[0]), path)
        self._check(cls, path)
        return cls

    def _accepts(self, cls: Any) -> bool:
        module, _, name = self.base.partition(":")
        return isinstance(cls, type) and issubclass(cls, getattr(import_module(module), name))

    def _check(self, cls: Any, path: str) -> None:
        if not self._accepts(cls):
            base = self.base.replace(":", ".")
            raise InvalidInput(f"{path} must be a subclass of {base} to be used as {self.kind}")


def is_path(text: str) -> bool:
    """Whether a text has the form `package.module:Name`."""
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(identifier.isidentifier() for identifier in [*module.split("."), *attribute.split(".")])


def load_path(path: str) -> Any:
    """The object behind `package.module:Name`, or a module, where that may be imported."""
    module, colon, attribute = path.partition(":")
    if not is_path(path if colon else f"{path}:module"):
        raise InvalidInput(f"a plugin is given as package.module:Name, not {path!r}")
    if module not in sys.modules and not trusted(module):
        raise UnknownName(
            f"{path} is a plugin that is not installed: install its package, import {module} first, "
            f"or set {PLUGINS}={module}"
        )
    imported = _import(module)
    return _attribute(imported, path) if attribute else imported


def trusted(module: str) -> bool:
    """Whether a module may be imported because a file names it: its package is installed, or the user listed it."""
    return module in _folders() or module.partition(".")[0] in packages_distributions()


def trust(path: str) -> None:
    """Allow a plugin, `module` or `module:Name`, that the user named or imported; child processes inherit this."""
    module, listed = path.partition(":")[0], _listed()
    if path in listed:
        return
    file = getattr(sys.modules.get(module), "__file__", None)
    folder = os.getcwd()  # noqa: PTH109  # sys.path holds strings
    if file is not None:
        depth = len(module.split(".")) - (Path(file).stem != "__init__")
        folder = str(Path(file).resolve().parents[depth])
    listed[path] = folder
    os.environ[PLUGINS] = ",".join(f"{name}={where}" if where else name for name, where in listed.items())


def _listed() -> dict[str, str]:
    """What LONGSPAN_PLUGINS lists, each with its folder where that is said."""
    entries = (entry.partition("=") for entry in os.environ.get(PLUGINS, "").split(","))
    return {name.strip(): folder.strip() for name, _, folder in entries if name.strip()}


def _folders() -> dict[str, str]:
    return {path.partition(":")[0]: folder for path, folder in _listed().items()}


def _import(module: str) -> ModuleType:
    with importable_from(_folders().get(module) or os.getcwd()):  # noqa: PTH109
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{module}.".startswith(f"{error.name}."):
                raise UnknownName(f"there is no module {module!r} here or among the installed packages") from None
            raise InvalidInput(f"the plugin {module} cannot be imported: {error}") from error
        except Exception as error:
            raise InvalidInput(f"the plugin {module} cannot be imported: {type(error).__name__}: {error}") from error


@contextmanager
def importable_from(folder: str) -> Iterator[None]:
    """Let imports search a folder too, as `python -m` searches the current one."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _attribute(module: ModuleType, path: str) -> Any:
    value: Any = module
    for attribute in path.partition(":")[2].split("."):
        if not hasattr(value, attribute):
            public = [name for name in dir(value) if not name.startswith("_")]
            raise UnknownName(f"{module.__name__} has no {attribute!r}: {suggest(attribute, public)}")
        value = getattr(value, attribute)
    return value


@cache
def _entry_points(group: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=group)}


__all__ = ["PLUGINS", "Registry", "importable_from", "is_path", "load_path", "trust", "trusted"]
