from __future__ import annotations

from tests.peers.overlay import peer_overlay

__all__ = ["peer_overlay"]
