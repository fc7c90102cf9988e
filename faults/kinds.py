"""All kinds of faults by name, in the order in which they run."""

from faults.checkpoints import Checkpoints
from faults.configs import Configs
from faults.disk import Disk
from faults.kill import Kill
from faults.numbers import Numbers
from faults.ranks import Ranks
from faults.samplers import Samplers
from faults.servers import Servers
from faults.together import Together

_ALL = (
    Kill,
    Configs,
    Disk,
    Checkpoints,
    Together,
    Ranks,
    Servers,
    Samplers,
    Numbers,
)
KINDS = {kind.name: kind for kind in _ALL}
