"""The coefficient of the KL penalty: fixed, or steered towards a target."""

from dataclasses import dataclass


@dataclass
class KLController:
    """beta. With a target it follows Ziegler et al. 2019, section 2.2:

        e = clip((KL - target) / target, -0.2, 0.2)        beta <- beta * (1 + e * episodes /
        horizon)

    KL is the batch mean of the summed log-ratio per response, in nats.
    """

    coef: float
    target: float | None = None
    horizon: int = 10_000

    def update(self, kl: float, episodes: int) -> None:
        if self.target is not None:
            error = min(max((kl - self.target) / self.target, -0.2), 0.2)
            self.coef *= 1 + error * episodes / self.horizon
