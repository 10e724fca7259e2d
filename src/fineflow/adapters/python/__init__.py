"""Code objects of Python 3.11 to 3.14, as both models of Python read them.

``bytecode`` decodes: the instructions of each version become those of one, so a model needs a rule for each of these.
``opcodes`` is the table of them: what they take from the stack and leave there, and how control goes on. ``graph`` is
the control flow with its exception edges. ``functions``: what functions hold, and
what ``super()`` finds.

What the instructions do is the models' own: ``analysis`` goes through all paths with values that track ownership,
``lookahead`` along one path with actual objects and unknown ones.
"""
