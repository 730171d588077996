"""What a hook counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Bytes and times of one rank since the hook was made.

    Bytes are those of the messages that are sent and received, counted once for each other rank, without the last word of a
    step. What TCP and encryption add is not counted. Times are in seconds.
    """

    steps: int
    #: Steps with a gradient that was not finite: their mean was NaN at all ranks, and nothing was changed by them.
    skipped_steps: int
    bytes_sent: int
    bytes_received: int
    #: Bytes of the frames and payloads that this rank made, each counted once.
    frame_bytes: int
    #: Bytes of the same gradients as float32.
    dense_bytes: int
    #: `dense_bytes` over `frame_bytes`.
    ratio: float
    #: What a dense float32 ring would have sent and received over what was sent and received; 0 for one rank.
    wire_ratio: float
    encode_seconds: float
    #: Messages, waiting for slower ranks included.
    exchange_seconds: float
    decode_seconds: float
    #: Copies from a device to pinned memory and back; 0 on the CPU.
    staging_seconds: float
    #: How long backward waited for means when all gradients were there.
    exposed_seconds: float
    #: L2 norm of the residuals of this rank.
    residual_norm: float
    #: How often the parameters of all ranks were found to be equal.
    hash_checks: int
    #: With the codec ``auto``: what was chosen and why, once it is.
    choice: str | None = None

    def __str__(self) -> str:
        """One line."""
        steps = max(self.steps, 1)
        return (
            f"gradwire: {self.steps} steps ({self.skipped_steps} skipped), {self.bytes_sent / steps / 1e3:.1f} kB sent a step, "
            f"{self.ratio:.1f} times smaller; a step waits {1e3 * self.exposed_seconds / steps:.1f} ms "
            f"(encode {1e3 * self.encode_seconds / steps:.1f}, exchange {1e3 * self.exchange_seconds / steps:.1f}, "
            f"decode {1e3 * self.decode_seconds / steps:.1f}, staging {1e3 * self.staging_seconds / steps:.1f}), "
            f"residual {self.residual_norm:.3g}" + (f"; {self.choice}" if self.choice else "")
        )
