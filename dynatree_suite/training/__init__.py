"""Training of a pair: a target from a recipe and named texts, and a draft distilled from it (`dynatree train`).

`recipe.py` says what decides the weights, `corpus.py` turns texts into windows of tokens, `optimize.py` is gradient
descent with checkpoints, `distil.py` has the losses and the target's own text, `evaluate.py` what is measured of a
pair, `pipeline.py` the order of the stages, `card.py` the finished pair on disk.
"""
