"""Text on the host: tokenizers, corpora, their provenance, and batches that restart at any step."""

from .batches import Batch as Batch
from .batches import BatchSampler as BatchSampler
from .batches import ByteTokens as ByteTokens
from .batches import Split as Split
from .batches import TokenSource as TokenSource
from .batches import WindowSampler as WindowSampler
from .builtin import PYTHON_DOCS as PYTHON_DOCS
from .chat_template import ChatTemplate as ChatTemplate
from .corpora import Corpus as Corpus
from .corpora import open_corpus as open_corpus
from .instructions import read_examples as read_examples
from .manifest import Manifest as Manifest
from .manifest import Source as Source
from .position import DataPosition as DataPosition
from .subword import SubwordTokenizer as SubwordTokenizer
from .token_corpus import TokenCorpus as TokenCorpus
from .token_corpus import kept_tokens as kept_tokens
from .tokenizer_files import load_tokenizer as load_tokenizer
from .tokenizers import ByteLevelTokenizer as ByteLevelTokenizer
from .tokenizers import ByteTokenizer as ByteTokenizer
from .tokenizers import ReservedByteTokenizer as ReservedByteTokenizer
from .tokenizers import Tokenizer as Tokenizer
from .tokenizers import tokenizer_for as tokenizer_for
