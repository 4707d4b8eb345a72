"""Files as every layer needs them: whole or not at all when written, regular and strict when read."""

from .durable import partial as partial
from .durable import replace_file as replace_file
from .durable import scratch_folder as scratch_folder
from .durable import sync_file as sync_file
from .durable import sync_folder as sync_folder
from .durable import write_file as write_file
from .regular import open_regular as open_regular
from .strict_json import strict_json as strict_json
