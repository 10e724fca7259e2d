"""Look-ahead: finds the component calls that a user function is going to make, while the function itself waits.

``Walk`` interprets the bytecode of a function (Python 3.11 to 3.14) on its actual arguments. It computes on plain data
only, changes nothing that it did not create, and treats results of components as unknown until they are there. So it
gets past ``score = grader.invoke(document)`` to the next turn of the loop, and finds the calls that the function makes
whatever the results are, with their arguments. Stock runs the function, once; the walk only says what will be asked.
"""

from fineflow.adapters.lookahead.values import UNKNOWN, Host, Stop
from fineflow.adapters.lookahead.walk import Walk

__all__ = ["UNKNOWN", "Host", "Stop", "Walk"]
