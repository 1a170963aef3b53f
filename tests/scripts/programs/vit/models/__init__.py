from .registry import *
from .vit import *
from .mixer import *
