"""Data sets by name or path, disjoint splits of them, and honest reports on what they hold."""

from lipforge.data.arrays import ArrayData, from_arrays
from lipforge.data.base import DataSet, content_digest
from lipforge.data.fetch import cache_folder
from lipforge.data.folder import FolderData, FolderOptions, open_folder
from lipforge.data.hub import HubData, from_hugging_face
from lipforge.data.load import DataEntry, DataReport, check_data, get_data, list_data, load_data
from lipforge.data.subsets import View, split, take, view
