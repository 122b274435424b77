"""What the half for existing files uses of the store: it imports the folders of the store here, and nowhere else."""

from parts_store.backends.addresses import (
    address_of,
    is_option,
    local_path,
    open_url,
    secrets_of,
    url_of,
    without_redirects,
)
from parts_store.backends.failures import is_about_object, translated
from parts_store.backends.icechunk_session import containers_in, message_of
from parts_store.backends.icechunk_storage import folder_url, opening_call, outermost
from parts_store.backends.registered_files import RegisteredFiles
from parts_store.codecs.damaged_chunks import decompress, require_blosc_sizes, with_checks
from parts_store.engine.concurrency import run_for_each, run_tasks_sync
from parts_store.engine.executor import run
from parts_store.engine.stats import Progress, Stats
from parts_store.engine.steps import (
    Entry,
    Found,
    Get,
    Head,
    List,
    Listed,
    Missing,
    Outcome,
    Put,
    Steps,
    content,
    get_all,
)
from parts_store.format.keys import (
    DOCUMENT,
    NODES_FOLDER,
    PROTOCOL_FOLDER,
    Chunk,
    PartPlacement,
    ancestors,
    is_node_key,
    join,
    part_node,
    side_folder_of,
    split,
    splits,
)
from parts_store.format.layout import Span, coalesce, plan_split, require_byte_request, resolve
from parts_store.format.metadata import (
    ArrayRecord,
    complete,
    dump,
    is_array,
    parse,
    read_array,
    why_not_opened,
    with_parts,
)
from parts_store.format.parts import SHARD_INDEX, ConcatParts, Part, PartsLike, parse_integer
from parts_store.format.references import ENCODED_SCHEMES, Reference, ReferenceTable
from parts_store.format.shard_index import CODEC, NO_CHUNK, ShardIndex, encode_table
from parts_store.headers import n5_nbytes, read_n5
from parts_store.pipeline.opening import use_pipeline
from parts_store.store import destination
from parts_store.store.options import parse_count
from parts_store.store.repositories import Virtual, discard_changes_on_failure, open_store
from parts_store.store.store import PartsStore, UnwritableStoreError
