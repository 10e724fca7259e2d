"""Purity analysis: decides conservatively if a user function may be called early, and which keys it reads.

``analyse(func)`` reads the bytecode (Python 3.11 to 3.14; on others everything undeclared is not pure). It is an
abstract interpretation of all paths, so "pure" holds for any argument, under three assumptions:

* *Values are data.* Operators, iteration, ``str()``, truth, and the methods and attributes named in ``tables`` behave
  on values from the argument as they do on plain data. ``is_plain(argument)`` checks it for one argument.
* *Known names stay.* The globals, closure cells and functions that were analysed are the same objects when the function
  runs: ``verdict.still_holds()`` checks it by identity, in microseconds. Check before a call is moved, and again
  before its result is used.
* *One argument.* The verdict is on ``func(argument)``; further parameters have their defaults.
"""

from fineflow.adapters.analysis.tables import is_plain
from fineflow.adapters.analysis.verdict import Verdict, analyse, asking, passes_on, trusting_models

__all__ = ["Verdict", "analyse", "asking", "is_plain", "passes_on", "trusting_models"]
