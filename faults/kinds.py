"""Every kind of fault by name."""

from faults.configs import AcceptedConfigs, Configs
from faults.kill import Kill

KINDS = {kind.name: kind for kind in (Kill, Configs, AcceptedConfigs)}
