"""What was seen of an image. None means that it could not be found out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton.deploy.image.pins import Kind


@dataclass(frozen=True)
class Copy:
    """One file that holds libfabric, NCCL, or a part of UCX.

    Args:
        family: `libfabric`, `libnccl`, `libucp` …
        path: Where it lies, links followed.
        digest: Of its bytes.
        mangled: Its name was made unique when its wheel was built (`libucp-bcc5ee2e.so.0.0.0`), and
            its soname with it: nobody else can be given it by mistake.
        on_path: How the loader finds it by name: `LD_LIBRARY_PATH`, `ldconfig`, or not at all.
        order: Place in the loader's search; the lowest is loaded.
    """

    family: str
    path: str
    digest: str
    mangled: bool = False
    on_path: str | None = None
    order: int = 0


@dataclass(frozen=True)
class ImageFacts:
    """Everything that the rules ask of."""

    kind: Kind
    image: str | None = None
    """What the image calls itself (`BATON_IMAGE`); None outside of one of ours."""
    pins: dict[str, str] = field(default_factory=dict)
    pins_from: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """Installed distributions, by normal name."""
    imports: dict[str, str | None] = field(default_factory=dict)
    """Module to its error; None: it was imported."""
    plugins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """NIXL plugin to the libraries that it misses; empty when it loads."""
    backends: dict[str, str | None] = field(default_factory=dict)
    """NIXL backend to its error; None: an agent with it was made."""
    copies: tuple[Copy, ...] = ()
    providers: tuple[str, ...] | None = None
    """What `fi_info` lists; None: there is no such tool."""
    fi_provider: str | None = None
    driver: bool = False
    """Whether NVIDIA's driver is here; without it nothing of CUDA can be tried."""
    efa_devices: int = 0
    programs: dict[str, str | None] = field(default_factory=dict)
    """Program to where it is; None: nowhere."""
    user: int | None = None
    open_files: int | None = None
    """The hard limit."""
    secrets: tuple[str, ...] = ()
    """Files that hold credentials."""
    secret_variables: tuple[str, ...] = ()
