"""Extraction: from a network and a folder of images (or a table of texts) to a file of logits and labels."""

from evicp.extraction.batches import Unreadable
from evicp.extraction.images import PAPER, Preprocess
from evicp.extraction.network import Network, Prompting
from evicp.extraction.networks import open_network
from evicp.extraction.run import Extraction, extract
from evicp.extraction.sources import Source, open_source

__all__ = [
    "PAPER",
    "Extraction",
    "Network",
    "Preprocess",
    "Prompting",
    "Source",
    "Unreadable",
    "extract",
    "open_network",
    "open_source",
]
