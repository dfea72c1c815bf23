"""Training of a pair from nothing: a target from named texts, and a draft distilled from it.

`__main__.py` is the command, which made the bundled pair: `python3 -m tools.pair_training --recipe tiny --data DIR`.
`recipe.py` says what decides the weights, `corpus.py` turns texts into windows of tokens, `distil.py` has the losses
and the target's own text, `evaluate.py` what is measured, `pipeline.py` the order of the stages, `card.py` writes what
is finished. Gradient descent and checkpoints are those of `dynatree_suite.training`.
"""
