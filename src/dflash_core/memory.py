"""The ledger: what each owner will take, known from file headers and settings before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.errors import OutOfMemoryError


@dataclass(frozen=True, slots=True)
class Owner:
    """One consumer of memory: how many bytes, and of what."""

    name: str
    bytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Predicted bytes by owner beside what the device has. `measured` is the process's real use, 0 where unknown."""

    device: str
    owners: tuple[Owner, ...]
    total: int
    free: int
    measured: int = 0

    @property
    def predicted(self) -> int:
        return sum(owner.bytes for owner in self.owners)


def gib(count: int) -> str:
    """Bytes for people: 1.5 GiB, 12 MiB, 3 KiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def check(ledger: Ledger, remedies: str) -> None:
    """Refuse a load that does not fit. Raises OutOfMemoryError naming the owners, largest first."""
    if ledger.predicted <= ledger.free:
        return
    largest = sorted(ledger.owners, key=lambda owner: owner.bytes, reverse=True)
    parts = ", ".join(f"{owner.name} {gib(owner.bytes)}" for owner in largest[:4])
    raise OutOfMemoryError(
        f"needs {gib(ledger.predicted)} on {ledger.device} ({parts}) but {gib(ledger.free)} is free; {remedies}"
    )
